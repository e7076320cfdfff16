"""Steering a sandbox's threads from outside, told apart by their pid namespace."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.isolation.sandboxes import shell

from agentenv.errors import InfrastructureError
from agentenv.isolation.namespace import threads
from agentenv.isolation.namespace.machine import NamespaceMachine


def _name(thread: int) -> str:
    return Path(f"/proc/{thread}/comm").read_text().strip()


async def test_only_the_sandboxes_threads_are_found(machine: NamespaceMachine) -> None:
    await shell(machine, "sleep 100 >/dev/null 2>&1 &")
    found = set(threads.threads(machine.pid))
    assert machine.pid in found
    assert os.getpid() not in found
    assert "sleep" in {_name(thread) for thread in found}


async def test_all_are_moved_and_what_they_start_later_too(machine: NamespaceMachine) -> None:
    core = max(os.sched_getaffinity(0))
    await shell(machine, "sleep 100 >/dev/null 2>&1 &")
    threads.move_sandbox(machine.pid, (core,))
    assert {frozenset(os.sched_getaffinity(thread)) for thread in threads.threads(machine.pid)} == {frozenset({core})}
    assert (await shell(machine, "nproc")).strip() == "1"


def test_one_that_ended_is_no_error() -> None:
    with subprocess.Popen(["/bin/true"]) as gone:
        pass
    threads.move_sandbox(gone.pid, (0,))
    threads.wait_until_stopped(gone.pid, 1.0)
    assert list(threads.threads(gone.pid)) == []


async def test_one_that_does_not_stop_is_named(machine: NamespaceMachine) -> None:
    await shell(machine, "sleep 100 >/dev/null 2>&1 &")
    sleeper = next(thread for thread in threads.threads(machine.pid) if thread != machine.pid)
    with pytest.raises(InfrastructureError, match=f"process {sleeper} of the sandbox has not stopped after 0.01 s"):
        threads.wait_until_stopped(machine.pid, 0.01)
    os.kill(sleeper, signal.SIGSTOP)
    threads.wait_until_stopped(machine.pid, 10.0)
