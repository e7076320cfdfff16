"""An owner that is killed, at any moment, leaves no process, cgroup, mount or network namespace."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
from tests.conditions import more_in_soak

from agentenv.isolation.namespace.cgroups import CgroupTree

OWNER = """
import asyncio, sys
from pathlib import Path
from agentenv.isolation.namespace.backend import NamespaceBackend
from tests.isolation.sandboxes import Yard, skeleton

async def main(directory: Path) -> None:
    yard = Yard(await NamespaceBackend.open(directory), directory, skeleton(directory))
    print(yard.backend._launcher._process.pid, flush=True)
    while True:
        machine, _ = await asyncio.gather(*(yard.backend.start(yard.spec()) for _ in range(2)))
        print("started", flush=True)
        await machine.kill()

asyncio.run(main(Path(sys.argv[1])))
"""


@contextmanager
def _owner(directory: Path) -> Iterator[tuple[subprocess.Popen[str], IO[str], int]]:
    """A process that owns sandboxes in `directory`, what it prints (a line a start), and the number of its launcher."""
    directory.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", OWNER, str(directory)], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        launcher = owner.stdout.readline().strip()
        if not launcher:
            pytest.skip("no namespaces here")
        yield owner, owner.stdout, int(launcher)


def _wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([descriptor], [], [], 30)
    os.close(descriptor)


def _namespaces() -> dict[str, set[str]]:
    """Every namespace of each kind that a process of this machine is in."""
    found: dict[str, set[str]] = {"net": set(), "mnt": set(), "pid": set()}
    for kind, known in found.items():
        for link in Path("/proc").glob(f"[0-9]*/ns/{kind}"):
            try:
                known.add(os.readlink(link))  # noqa: PTH115
            except OSError:
                continue  # it ended meanwhile
    return found


@pytest.mark.parametrize("round_number", more_in_soak(range(4), range(4, 100)))
def test_kill_at_a_random_moment_leaves_nothing(tmp_path: Path, round_number: int) -> None:
    choice = random.Random(round_number)
    directory = tmp_path / f"owner{round_number}x{os.getpid()}"
    with _owner(directory) as (owner, output, launcher):
        for _ in range(choice.randrange(4)):
            output.readline()
        select.select([output], [], [], choice.random() * 0.02)  # a moment within the next start
        owner.send_signal(signal.SIGKILL)
    _wait_for_end(launcher)
    assert directory.name not in Path("/proc/self/mountinfo").read_text()
    assert [name for name in CgroupTree.discover().names() if directory.name in name] == []
    assert not [link for link in Path("/proc").glob("[0-9]*/cwd") if _points_into(link, directory)]


def _points_into(link: Path, directory: Path) -> bool:
    try:
        return os.readlink(link).startswith(str(directory))  # noqa: PTH115
    except OSError:
        return False


def test_no_namespace_is_left(tmp_path: Path) -> None:
    directory = tmp_path / f"ownern{os.getpid()}"
    with _owner(directory) as (owner, output, launcher):
        output.readline()
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        owned: dict[str, set[str]] = {"net": set(), "mnt": set(), "pid": set()}
        for child in children:
            with suppress(FileNotFoundError):  # one that only looked whether something works here, and is done
                for kind, names in owned.items():
                    names.add(os.readlink(f"/proc/{child}/ns/{kind}"))  # noqa: PTH115
        owner.send_signal(signal.SIGKILL)
    _wait_for_end(launcher)
    assert owned["pid"]
    left = _namespaces()
    assert {kind: owned[kind] & left[kind] for kind in owned} == {"net": set(), "mnt": set(), "pid": set()}
