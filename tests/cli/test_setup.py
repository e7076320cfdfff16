"""`agentenv setup` on a machine of whose programs the test decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentenv.cli.main import app


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only programs are those in `bin`, with an empty offline directory."""
    monkeypatch.setenv("AGENTENV_ARTEFACTS", str(tmp_path / "store"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("FIRECRACKER", "JAILER", "KERNEL", "RUNSC", "QEMU"):
        monkeypatch.delenv(f"AGENTENV_{name}", raising=False)
    (tmp_path / "offline").mkdir()
    (tmp_path / "bin").mkdir()
    return tmp_path


def runsc(path: Path, date: str) -> Path:
    path.write_text(f"#!/bin/sh\necho 'runsc version release-{date}.0'\n")
    path.chmod(0o755)
    return path


def test_what_is_there_is_shown(machine: Path) -> None:
    path = runsc(machine / "bin/runsc", "20250101")
    done = CliRunner().invoke(app, ["setup", "--isolation", "gvisor", "--json"])
    assert done.exit_code == 0
    (outcome,) = json.loads(done.stdout)
    assert outcome["name"] == "runsc"
    assert outcome["path"] == str(path)
    assert outcome["version"] == "20250101"
    assert outcome["wanted_by"] == ["gvisor"]
    assert outcome["problem"] is None


def test_a_given_path_is_remembered(machine: Path) -> None:
    path = runsc(machine / "elsewhere", "20250202")
    assert CliRunner().invoke(app, ["setup", "-i", "gvisor", "--use", f"runsc={path}"]).exit_code == 0
    again = CliRunner().invoke(app, ["setup", "-i", "gvisor"])
    assert again.exit_code == 0
    assert "20250202" in again.stdout
    assert "given by the user" in again.stdout


def test_what_cannot_be_had_is_told_with_its_remedy(machine: Path) -> None:
    done = CliRunner().invoke(app, ["setup", "-i", "firecracker", "--offline", str(machine / "offline")])
    assert done.exit_code == 1
    assert "missing" in done.stdout
    assert "AGENTENV_FIRECRACKER" in done.stdout
    assert "AGENTENV_KERNEL" in done.stdout


def test_all_backends_share_one_kernel(machine: Path) -> None:
    done = CliRunner().invoke(app, ["setup", "--offline", str(machine / "offline"), "--json"])
    outcomes = {outcome["name"]: outcome for outcome in json.loads(done.stdout)}
    assert outcomes["kernel"]["wanted_by"] == ["firecracker", "qemu"]


def test_mistakes(machine: Path) -> None:
    assert CliRunner().invoke(app, ["setup", "-i", "docker"]).exit_code == 1
    assert CliRunner().invoke(app, ["setup", "--use", "runsc"]).exit_code == 2
