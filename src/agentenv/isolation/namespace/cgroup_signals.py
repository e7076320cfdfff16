"""Freezing, thawing and killing everything in a cgroup, and knowing when that has happened."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass

from agentenv.errors import InfrastructureError
from agentenv.isolation.namespace import cgroup_files as files


@dataclass(frozen=True, slots=True)
class Freezer:
    """A directory whose processes can be frozen: any group of version 2, or one in version 1's freezer hierarchy."""

    version: int
    directory: str

    @property
    def state_file(self) -> str:
        return f"{self.directory}/{'cgroup.freeze' if self.version == 2 else 'freezer.state'}"


def freeze(freezer: Freezer, name: str, timeout: float) -> None:
    """Freezes and waits until it took effect; on a timeout (seconds) thaws again and raises `InfrastructureError`."""
    deadline = time.monotonic() + timeout
    files.write(freezer.state_file, "1" if freezer.version == 2 else "FROZEN")
    if freezer.version == 2:
        frozen = files.wait_for_counter(f"{freezer.directory}/cgroup.events", "frozen", 1, deadline)
    else:
        frozen = _wait_for_v1_freezer(freezer.state_file, deadline)
    if not frozen:
        thaw(freezer)
        raise InfrastructureError(
            f"cgroup {name} did not freeze within {timeout:g} s: a process in it is stuck in the kernel.",
            remedy="Look for a hanging disk or network file system; the sandbox goes on running.",
        )


def thaw(freezer: Freezer) -> None:
    """Lets the processes go on."""
    files.write(freezer.state_file, "0" if freezer.version == 2 else "THAWED")


def _wait_for_v1_freezer(state_file: str, deadline: float) -> bool:
    """Version 1 notifies nobody: the state moves from FREEZING to FROZEN only when it is read, so it is read at growing intervals."""
    pause_ms = 1
    while (files.read(state_file) or "FROZEN").strip() != "FROZEN":
        if time.monotonic() >= deadline:
            return False
        select.poll().poll(pause_ms)
        pause_ms = min(50, pause_ms * 2)
    return True


def kill_v2(directory: str) -> None:
    """Kills everything at once through `cgroup.kill`; before Linux 5.14 by freezing, so that nothing can fork, and signalling each."""
    try:
        if files.write_if_present(f"{directory}/cgroup.kill", "1"):
            return
        files.write(f"{directory}/cgroup.freeze", "1")
    except FileNotFoundError:
        return
    for pid in files.read_processes(f"{directory}/cgroup.procs"):
        _kill(pid)


def kill_v1(directory: str, freezer: str | None, timeout: float) -> None:
    """Kills everything in a version 1 group and returns when it is gone, or after `timeout` seconds.

    `freezer` is its directory in the freezer hierarchy, where there is one: frozen, processes cannot fork while they are being listed.
    Without it they are listed until none is left.
    """
    deadline = time.monotonic() + timeout
    while (pids := files.read_processes(f"{directory}/cgroup.procs")) and time.monotonic() < deadline:
        if freezer is not None:
            files.write(f"{freezer}/freezer.state", "FROZEN")
            pids = files.read_processes(f"{directory}/cgroup.procs")
        with ExitStack() as stack:
            waiting = [descriptor for pid in pids if (descriptor := _kill_and_watch(pid, stack)) is not None]
            if freezer is not None:
                files.write(f"{freezer}/freezer.state", "THAWED")
            for descriptor in waiting:
                poller = select.poll()
                poller.register(descriptor, select.POLLIN)
                poller.poll(max(1, int((deadline - time.monotonic()) * 1000)))


def _kill_and_watch(pid: int, stack: ExitStack) -> int | None:
    """Signals through a pidfd, which cannot hit a later process of the same number, and hands it out for waiting."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    stack.callback(os.close, descriptor)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return descriptor


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_until_empty(directory: str, name: str, timeout: float) -> None:
    """Returns when no live process is left in a version 2 group; raises `InfrastructureError` after `timeout` seconds."""
    if not files.wait_for_counter(f"{directory}/cgroup.events", "populated", 0, time.monotonic() + timeout):
        left = ", ".join(map(str, files.read_processes(f"{directory}/cgroup.procs")))
        raise InfrastructureError(
            f"cgroup {name} still holds processes {timeout:g} s after SIGKILL (pid {left}).",
            remedy="They are stuck in the kernel, usually on a hanging disk; the next start removes the group when they are gone.",
        )
