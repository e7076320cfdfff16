"""Reading and writing the small text files of a cgroup directory, and waiting for one to change without polling the clock.

Formats as in the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable

UNLIMITED_V1 = 1 << 62
"""cgroup v1 spells "no limit" as the largest page-aligned signed 64-bit number; anything from here up means it."""

_ABSENT = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL})


def write(path: str, value: str) -> None:
    """Writes `value` in one call, as these files demand; raises `OSError` with the kernel's verdict."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def write_if_present(path: str, value: str) -> bool:
    """Like `write`, but False where this kernel has no such file (an optional feature), it is switched off, or the group is gone."""
    try:
        write(path, value)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return False
        raise
    return True


def read(path: str) -> str | None:
    """The file's text, or None where this kernel has no such file or has the feature behind it switched off."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    try:
        chunks: list[bytes] = []
        while chunk := os.read(descriptor, 1 << 16):
            chunks.append(chunk)
        return b"".join(chunks).decode()
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    finally:
        os.close(descriptor)


def read_number(path: str) -> int | None:
    """A file that holds one number; None where it is absent or says "max"."""
    text = read(path)
    if text is None or text.strip() == "max":
        return None
    return int(text)


def parse_counters(text: str) -> dict[str, int]:
    """Flat keyed lines, `name number`; lines of any other shape are left out."""
    counters: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isascii() and value.strip().isdigit():
            counters[name] = int(value)
    return counters


def read_counters(path: str) -> dict[str, int]:
    """A flat keyed file as a dictionary, empty where it is absent."""
    return parse_counters(read(path) or "")


def parse_pressure(text: str | None) -> float | None:
    """`some avg10=` of a pressure file: the share (0-100) of the last ten seconds in which some task was stalled."""
    for line in (text or "").splitlines():
        if line.startswith("some "):
            for field in line.split()[1:]:
                name, _, value = field.partition("=")
                if name == "avg10":
                    return float(value)
    return None


def read_processes(path: str) -> tuple[int, ...]:
    """The process ids in a `cgroup.procs` file, empty where it is gone; those outside our pid namespace read as 0 and are left out."""
    return tuple(pid for pid in map(int, (read(path) or "").split()) if pid > 0)


def wait_for_counter(path: str, name: str, value: int, deadline: float) -> bool:
    """Waits until `name` in the keyed file has `value`, woken by the kernel's notification (POLLPRI) for each change.

    `deadline` is on `time.monotonic`. False when it passed first. A file that is gone counts as reached: the cgroup was removed.
    """
    return wait_for_change(path, lambda text: parse_counters(text).get(name) == value, deadline)


def wait_for_change(path: str, reached: Callable[[str], bool], deadline: float) -> bool:
    """Waits until `reached(text of the file)`; see `wait_for_counter`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLPRI)
        while True:
            try:
                text = os.pread(descriptor, 4096, 0).decode()
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return True
                raise
            if reached(text):
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            poller.poll(max(1, int(remaining * 1000)))
    finally:
        os.close(descriptor)
