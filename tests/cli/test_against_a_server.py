"""The commands on sandboxes, asked of a server and not of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.server.conftest import RunningServer, server
from typer.testing import CliRunner

from agentenv.cli.main import app
from agentenv.cli.templates import complete_template

__all__ = ["server"]  # a fixture


@pytest.fixture
def there(server: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunningServer:
    monkeypatch.setenv("AGENTENV_API_KEY", server.key)
    monkeypatch.setenv("AGENTENV_SERVER", server.url)  # the commands set it for their own process, which is ours
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "home"))
    return server


def run(server: RunningServer, *words: str) -> str:
    done = CliRunner().invoke(app, ["--server", server.url, *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_sandbox_of_a_server_from_its_start_to_its_end(there: RunningServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    box = run(there, "create", "--metadata", "task=t1", "--timeout", "10m").strip()
    assert [info["id"] for info in json.loads(run(there, "ls", "--json"))] == [box]
    (tmp_path / "note").write_text("hello")
    run(there, "cp", str(tmp_path / "note"), f"{box}:/srv/data/note")
    assert "hello" in run(there, "exec", box, "cat", "/srv/data/note")
    run(there, "cp", f"{box}:/srv/data", str(tmp_path / "back"))
    assert (tmp_path / "back" / "note").read_text() == "hello"
    run(there, "cp", f"{box}:/srv/data/note", f"{box}:/srv/copy")
    assert json.loads(run(there, "metrics", box, "--json"))["memory"] > 0
    run(there, "snapshot", "create", box, "--name", "kept")
    assert [snapshot["name"] for snapshot in json.loads(run(there, "snapshot", "ls", "--json"))] == ["kept"]
    (child,) = json.loads(run(there, "fork", box, "--json"))
    run(there, "pause", box)
    run(there, "resume", box)
    assert "hello" in run(there, "exec", child["id"], "cat", "/srv/copy")
    assert {"created", "paused", "resumed"} <= {line["message"] for line in json.loads(run(there, "logs", box, "--json"))}
    run(there, "kill", "--all")
    run(there, "snapshot", "rm", "kept")
    assert json.loads(run(there, "ls", "--json")) == []


def test_a_login_is_where_sandboxes_are_until_one_says_otherwise(there: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    run(there, "login", there.url, "--api-key", there.key)
    monkeypatch.delenv("AGENTENV_API_KEY")
    monkeypatch.delenv("AGENTENV_SERVER")
    box = CliRunner().invoke(app, ["create"]).output.strip()
    assert there.fleet.known(box)
    assert json.loads(CliRunner().invoke(app, ["--local", "ls", "--json"]).output) == []
    monkeypatch.delenv("AGENTENV_SERVER")
    assert CliRunner().invoke(app, ["kill", box]).exit_code == 0
    assert not there.fleet.known(box)


def test_templates_of_a_server_from_build_to_removal(there: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM host\nRUN echo built > /built\n")
    built = json.loads(run(there, "template", "build", str(tmp_path), "-t", "cli-mine:v1", "--json"))
    assert "cli-mine:stable is cli-mine:v1 now" in run(there, "template", "tag", "cli-mine:v1", "stable")
    listed = {name: one for one in json.loads(run(there, "template", "ls", "--json")) for name in one["names"]}
    assert (listed["cli-mine"]["buildStatus"], listed["base"]["builtIn"], listed["cli-mine"]["builtIn"]) == ("ready", True, False)
    shown = run(there, "template", "show", "cli-mine")
    assert built["buildID"] in shown
    assert "stable, v1" in shown
    assert "RUN echo built" in run(there, "template", "logs", "cli-mine")
    assert complete_template() == ["cli-mine", "base"]
    assert "keeps its builds" in run(there, "template", "rm", "cli-mine:stable")
    assert [one["tag"] for one in json.loads(run(there, "template", "show", "cli-mine", "--json"))["tags"]] == ["v1"]
    assert "with all its builds" in run(there, "template", "rm", "cli-mine")
    for words in (["show", "cli-mine"], ["rebuild", "cli-mine"], ["prune"]):
        assert CliRunner().invoke(app, ["--server", there.url, "template", *words]).exit_code == 1
    assert CliRunner().invoke(app, ["--server", there.url, "exec", "-t", "any", "ls"]).exit_code == 1, "no terminal"


def test_a_server_that_does_not_answer_completes_nothing(there: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_SERVER", "http://127.0.0.1:9")
    assert complete_template() == []
