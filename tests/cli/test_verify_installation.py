"""scripts/verify_installation.py says what it was asked to say, and its exit code means it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "verify_installation.py"


def verify(*python: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *python, str(SCRIPT)], capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Docker, and a Firecracker that says its version."""
    program = tmp_path / "firecracker"
    program.write_text("#!/bin/sh\necho 'Firecracker v1.12.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin:/usr/sbin:/sbin")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


@pytest.mark.usefixtures("stand_ins")
def test_the_four_lines() -> None:
    done = verify()
    lines = done.stdout.splitlines()
    assert lines[0] == "AgentENV environment verified successfully!", done
    assert lines[1] == "Firecracker version: 1.12.1"
    assert lines[2] == "Python environment: OK"
    assert lines[-1].startswith("Docker connectivity: not available: the daemon at unix://")
    assert "what still works: Everything" in lines[-1]
    assert done.returncode == 0


@pytest.mark.usefixtures("stand_ins")
def test_no_environment_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "file"))
    done = verify()
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].startswith("AgentENV environment NOT verified: ")
    assert "AGENTENV_HOME" in done.stdout


def test_without_the_package_it_says_how_to_install_it() -> None:
    done = verify("-S", "-I")
    assert done.returncode == 1
    assert "pip3 install -r requirements.txt" in done.stdout
    assert done.stderr == ""
