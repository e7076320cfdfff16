"""A command that is ended from outside leaves nothing, as one that Ctrl-C ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_with_things_of_its_own_removes_them(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "agentenv.cli.main", "conformance", "namespace", "--only", "exec"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "AGENTENV_HOME": str(tmp_path / "home")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("pass"), "the first of several checks"
        process.send_signal(number)
        _, complaints = process.communicate()
    assert process.returncode not in (0, -number), complaints
    assert list(scratch.iterdir()) == []
    assert "Traceback" not in complaints
