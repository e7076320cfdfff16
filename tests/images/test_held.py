"""Locks on directories: between processes, and over the end of one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.images.held import claim, hold, wait_for

HOLDER = """
import sys, pathlib
from agentenv.images.held import hold
held = hold(pathlib.Path(sys.argv[1]))
print(held is not None, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "held"
    path.mkdir()
    return path


def test_many_hold_and_none_may_claim(directory: Path) -> None:
    first, second = hold(directory), hold(directory)
    assert first is not None
    assert second is not None
    assert claim(directory) is None
    first.release()
    first.release()
    assert claim(directory) is None
    second.release()
    assert claim(directory) is not None


def test_a_killed_process_holds_nothing(directory: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert claim(directory) is None
    holder.kill()
    holder.communicate()
    assert claim(directory) is not None


def test_a_directory_that_was_replaced_meanwhile_is_not_the_one_that_was_locked(directory: Path) -> None:
    lock = claim(directory)
    assert lock is not None
    directory.rename(directory.with_name("moved"))
    directory.mkdir()
    assert claim(directory) is not None


def test_nothing_to_hold(tmp_path: Path) -> None:
    assert hold(tmp_path / "missing") is None
    assert claim(tmp_path / "missing") is None
    with pytest.raises(FileNotFoundError):
        wait_for(tmp_path / "missing")
