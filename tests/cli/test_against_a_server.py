"""The commands on sandboxes, asked of a server and not of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.server.conftest import RunningServer, server
from typer.testing import CliRunner

from agentenv.cli.main import app

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
