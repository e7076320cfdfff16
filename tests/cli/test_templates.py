"""`agentenv build`, `agentenv template` and `agentenv image`, in real sandboxes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.conditions import needs_namespaces
from tests.machines import small_root
from tests.oci import layer_of_tree, make_image, write_layout

from agentenv.images import ImageStore
from agentenv.paths import state_home

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENTENV_SERVER", "AGENTENV_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def command(*arguments: str, given: str = "") -> str:
    """What the command prints as a process of its own, which some commands have to be."""
    done = subprocess.run([sys.executable, "-m", "agentenv.cli.main", *arguments], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_namespaces
def test_a_template_from_build_to_prune(agentenv: Run, workplace: Path) -> None:
    (workplace / "Dockerfile").write_text("FROM host\nARG WHO=me\nENV WHO=$WHO\nLABEL kind=test\nRUN echo $WHO > /who\n")
    built = agentenv("build", ".", "-t", "mine:v1", "--build-arg", "WHO=you", "--isolation", "namespace", "--memory", "256MB")
    assert built.returncode == 0, built.stderr
    assert "mine:v1 is built" in built.stdout
    assert "RUN echo $WHO > /who" in built.stderr
    (listed,) = json.loads(agentenv("template", "ls", "--json").stdout)
    assert (listed["name"], listed["tag"], listed["base"], listed["facts"]) == ("mine", "v1", "host", {"labels": {"kind": "test"}})
    shown = agentenv("template", "show", "mine:v1").stdout
    assert "env WHO" in shown
    assert "256 MB" in shown
    assert command("shell", "--image", "template:mine:v1", "--isolation", "namespace", given="cat /who") == "you\n"
    assert "the same files" in agentenv("template", "rebuild", "mine:v1").stdout
    rows = json.loads(agentenv("image", "refresh", "--older-than", "0s", "--json").stdout)
    assert [(row["name"], row["result"]) for row in rows] == [("template:mine:v1", "nothing newer")]
    (workplace / "Dockerfile").write_text("FROM host\nRUN exit 1\n")
    failed = agentenv("image", "refresh", "--older-than", "0s", "--json")
    assert failed.returncode == 1
    assert "ended with status 1" in json.loads(failed.stdout)[0]["result"]
    assert command("shell", "--image", "template:mine:v1", "--isolation", "namespace", given="cat /who") == "you\n", "the old build stays"
    assert agentenv("template", "tag", "mine:v1", "stable").returncode == 0
    assert json.loads(agentenv("template", "show", "mine:stable", "--json").stdout)["snapshot"] == listed["snapshot"]
    assert "mine:stable removed\nmine:v1 removed" in agentenv("template", "rm", "mine:stable", "mine:v1").stdout
    assert "2 results of steps removed" in agentenv("template", "prune").stdout
    assert "There is no template yet" in agentenv("template", "ls").stdout


@needs_namespaces
def test_a_mistake_and_a_failed_step_end_with_one_line(agentenv: Run, workplace: Path) -> None:
    (workplace / "Dockerfile").write_text("FROM host\nCOPPY a b\n")
    wrong = agentenv("build", ".", "--json")
    assert wrong.returncode == 1
    assert "Dockerfile:2: there is no instruction 'COPPY'" in json.loads(wrong.stdout)["error"]["message"]
    (workplace / "Dockerfile").write_text("FROM host\nRUN exit 7\n")
    failed = agentenv("build", ".", "--isolation", "namespace")
    assert failed.returncode == 1
    assert "Dockerfile:2: RUN exit 7: ended with status 7" in failed.stderr
    assert agentenv("build", "missing").returncode == 1
    assert "Did you mean 'code-interpreter'" in agentenv("build", "--recipe", "code-interpretr").stderr


@pytest.mark.soak
@needs_namespaces
def test_what_a_template_starts_runs_in_a_detached_sandbox_too(agentenv: Run, workplace: Path) -> None:
    (workplace / "Dockerfile").write_text("FROM host\n")
    start = ("--start", "touch /tmp/up; exec sleep infinity", "--ready", "test -e /tmp/up")
    assert agentenv("build", ".", "-t", "starts", "--isolation", "namespace", *start).returncode == 0
    made = json.loads(command("create", "--image", "template:starts", "--isolation", "namespace", "--json"))
    try:
        assert "infinity" in command("exec", made["id"], "--", "sh", "-c", "test -e /tmp/up && cat /proc/[0-9]*/cmdline")
    finally:
        assert agentenv("kill", made["id"]).returncode == 0


def test_images_are_pulled_listed_exported_refreshed_and_removed(agentenv: Run, workplace: Path) -> None:
    image = make_image([layer_of_tree(small_root(workplace / "root"))], {"Env": ["A=1"]})
    reference = f"oci:{write_layout(workplace / 'layout', {'x': image})}"
    assert json.loads(agentenv("image", "pull", reference, "--json").stdout) == [{"name": reference, "reference": image.image_id}]
    assert f"is {image.image_id} now" in agentenv("image", "pull", reference).stdout
    (listed,) = json.loads(agentenv("image", "ls", "--json").stdout)
    assert (listed["reference"], listed["names"], listed["in_use"]) == (image.image_id, [reference], False)
    assert image.image_id[:19] in agentenv("image", "ls").stdout
    assert agentenv("image", "export", reference, "out.tar").returncode == 0
    assert ImageStore(workplace / "other").resolve(f"oci:{workplace}/out.tar").env["A"] == "1"
    (row,) = json.loads(agentenv("image", "refresh", "--older-than", "1s", "--json").stdout)
    assert (row["name"], row["result"], row["obtained_days_ago"]) == (reference, "cannot be renewed", 0.0)
    assert row["made_days_ago"] > 300
    assert "is this machine's own directories" in agentenv("image", "export", "host", "x").stderr
    assert "cannot be pulled" in agentenv("image", "pull", "host").stderr
    assert agentenv("image", "rm", reference).returncode == 0
    assert json.loads(agentenv("image", "ls", "--json").stdout) == [] or "host" in agentenv("image", "ls").stdout
    assert not list((state_home() / "images/layers").glob("*/root"))


def test_what_a_server_needs_is_not_pruned_by_who_does_not_know_of_it(agentenv: Run) -> None:
    (state_home() / "server").mkdir(parents=True)
    refused = agentenv("template", "prune")
    assert refused.returncode == 1
    assert "gc --on-server" in refused.stderr
