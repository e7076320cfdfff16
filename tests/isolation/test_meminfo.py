"""What a sandbox is shown of its memory follows what it uses, and costs the machine's users nothing that is scarce."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.isolation.sandboxes import MIB, Yard, shell

from agentenv.guest import Connection
from agentenv.guest.files import watch
from agentenv.isolation.contract import Resources
from agentenv.isolation.namespace.machine import NamespaceMachine

MANY = 200  # more than the inotify instances that Linux allows a user
LOOK_UNTIL_LESS = r"""
available() { while read -r name value unit; do [ "$name" = MemAvailable: ] && echo "$value"; done < /proc/meminfo; }
before=$(available)
head -c 60000000 /dev/zero > /tmp/taken
while [ "$(available)" -gt $((before - 50000)) ]; do :; done
rm /tmp/taken
while [ "$(available)" -lt $((before - 10000)) ]; do :; done
echo followed
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an unprivileged user's sandboxes have no memory limit")


def inotify_instances(pid: int) -> int:
    """How many of them a process holds."""
    return sum(str(descriptor.readlink()) == "anon_inode:inotify" for descriptor in Path(f"/proc/{pid}/fd").iterdir())


async def test_one_command_that_goes_on_looking_sees_memory_go_and_come_back(yard: Yard) -> None:
    machine = await yard.backend.start(yard.spec(resources=Resources(memory=256 * MIB)))
    assert await shell(machine, LOOK_UNTIL_LESS) == "followed\n"


async def test_the_launcher_watches_for_all_sandboxes_at_once(yard: Yard) -> None:
    machines = [await yard.backend.start(yard.spec(resources=Resources(memory=64 * MIB))) for _ in range(2)]
    await asyncio.gather(*(shell(machine, "cat /proc/meminfo") for machine in machines))
    assert [inotify_instances(machine.pid) for machine in machines] == [0, 0]
    assert inotify_instances(yard.backend._launcher._process.pid) == 1


@pytest.mark.soak
async def test_a_directory_can_be_watched_beside_more_sandboxes_than_a_user_has_inotify_instances(yard: Yard) -> None:
    machines: list[NamespaceMachine] = []
    for _ in range(MANY):
        machines.append(await yard.backend.start(yard.spec(resources=Resources(memory=32 * MIB))))
    connection = Connection.open(machines[-1].dial())
    changes = await watch(connection, "/tmp")
    await shell(machines[-1], "touch /tmp/new")
    change = await changes.next()
    connection.close()
    assert change is not None
    assert (change.type, change.path) == ("create", "/tmp/new")
    assert (
        await shell(machines[0], LOOK_UNTIL_LESS.replace("60000000", "6000000").replace("50000", "4000").replace("10000", "2000"))
        == "followed\n"
    )
