"""Finding runsc: which one counts, which is refused and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.isolation.gvisor.runsc import VARIABLE, Runsc, explain


def program(directory: Path, prints: str, status: int = 0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "runsc"
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize("prints", ["runsc version 0.0~20240729.0", "runsc version release-20250319.0"])
def test_versions_of_debian_and_upstream_are_told(nowhere: Path, monkeypatch: pytest.MonkeyPatch, prints: str) -> None:
    path = program(nowhere, prints)
    monkeypatch.setenv(VARIABLE, str(path))
    found = Runsc.find()
    assert found.path == path
    assert found.version in ("runsc 20240729.0", "runsc 20250319.0")


def test_the_named_one_goes_before_the_path_and_that_before_the_artefact(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match=r"no runsc.*agentenv setup"):
        Runsc.find()
    artefact = program(nowhere / "home/artefacts/runsc", "runsc version 0.0~20240101.0")
    assert Runsc.find().path == artefact
    on_path = program(nowhere / "path", "runsc version 0.0~20240102.0")
    monkeypatch.setenv("PATH", f"{nowhere / 'path'}:/usr/bin:/bin")
    assert Runsc.find().path == on_path
    named = program(nowhere / "named", "runsc version 0.0~20240103.0")
    monkeypatch.setenv(VARIABLE, str(named))
    assert Runsc.find().path == named


@pytest.mark.parametrize(
    ("prints", "status", "reason"),
    [
        ("runsc version 0.0~20221219.0", 0, "is of 20221219, and versions before 2024 cannot be used"),
        ("hello", 0, "does not tell its version; it printed 'hello'"),
        ("runsc version 0.0~20240729.0", 1, "does not run"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch, prints: str, status: int, reason: str
) -> None:
    monkeypatch.setenv(VARIABLE, str(program(nowhere, prints, status)))
    with pytest.raises(BackendUnavailable, match=reason):
        Runsc.find()


def test_a_named_one_that_is_missing_is_an_error(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/no/such/runsc")
    with pytest.raises(BackendUnavailable, match="/no/such/runsc does not run"):
        Runsc.find()


def test_a_failure_is_told_by_its_first_line(tmp_path: Path) -> None:
    runsc = Runsc(program(tmp_path, "loading container: file does not exist\ngoroutine 1 [running]:", 1), "runsc 1")
    with pytest.raises(InfrastructureError, match=r"^the attempt failed: loading container: file does not exist\.$"):
        runsc.call(tmp_path, "state", "m1", what="the attempt")
    assert explain("  \n") == "it printed nothing."
