"""Faults that a backend may have are found, each by the check that is there for it; backends of other packages are tried like our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.cli.conftest import agentenv  # noqa: F401
from tests.conditions import needs_namespaces

from agentenv.isolation import registry
from agentenv.isolation.conformance import CHECKS, Verdict, open_yard, run_checks, select

FAULTS = [
    ("boastful", "machine-memory.claim", "whether the backend has `restore`"),
    ("patient", "machine-start.timeout", "was not refused: there should have been StartupTimeout"),
    ("restless", "machine-pause.stops", "a paused machine goes on printing"),
    ("undying", "machine.kill", "on a machine that has ended was not refused"),
    ("forgetful", "machine.identity", "the host names is"),
]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faulty backends, as if another package had brought them."""
    entries = [metadata.EntryPoint(name, f"tests.conformance.faulty:open_{name}", registry.GROUP) for name, _, _ in FAULTS]
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: entries)


@needs_namespaces
@pytest.mark.parametrize(("name", "check", "told"), FAULTS, ids=[name for name, _, _ in FAULTS])
async def test_a_fault_is_found_by_its_check(name: str, check: str, told: str) -> None:
    async with open_yard(name) as yard:
        (outcome,) = [outcome async for outcome in run_checks(select(CHECKS, [check]), yard)]
    assert outcome.verdict is Verdict.FAILED
    assert told in outcome.message


@needs_namespaces
def test_the_command_line_names_what_failed_and_ends_with_1(home: Path, agentenv: Callable[..., CompletedProcess[str]]) -> None:  # noqa: F811
    done = agentenv("conformance", "forgetful", "--only", "machine.identity", "--only", "machine.start", "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert {check["check"]: check["verdict"] for check in told["checks"]} == {"machine.start": "pass", "machine.identity": "fail"}
    for_people = agentenv("conformance", "forgetful", "--only", "machine.identity")
    assert for_people.returncode == 1
    assert "0 passed, 1 failed, 0 skipped" in for_people.stdout
    assert "the host names is" in " ".join(for_people.stdout.split())


@needs_namespaces
def test_a_sound_backend_ends_with_0(home: Path, agentenv: Callable[..., CompletedProcess[str]]) -> None:  # noqa: F811
    done = agentenv("conformance", "namespace", "--only", "honesty.probe", "--only", "network.unclaimed")
    assert done.returncode == 0
    assert "1 passed, 0 failed, 1 skipped" in done.stdout
    assert "the backend claims network." in done.stdout


def test_what_there_is_can_be_listed_and_chosen(agentenv: Callable[..., CompletedProcess[str]]) -> None:  # noqa: F811
    listed = agentenv("conformance", "any", "--list", "--only", "pty").stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["pty.size", "pty.interrupt"]
    assert json.loads(agentenv("conformance", "any", "--list", "--json").stdout)[0]["check"] == "machine.start"
    refused = agentenv("conformance", "any", "--list", "--only", "nonsense")
    assert refused.returncode == 1
    assert "there is no check 'nonsense'" in refused.stderr


def test_a_backend_that_is_not_there_is_one_clear_line(home: Path, agentenv: Callable[..., CompletedProcess[str]]) -> None:  # noqa: F811
    done = agentenv("conformance", "namespaces")
    assert done.returncode == 1
    assert "Did you mean 'namespace'?" in done.stderr
