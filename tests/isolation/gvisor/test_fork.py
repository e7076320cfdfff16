"""Checkpoints: what ran goes on in each child, from the same moment, and apart from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.isolation.gvisor.sandboxes import NOTHING, GvisorYard
from tests.isolation.sandboxes import shell

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState
from agentenv.guest import Command, Connection
from agentenv.guest.processes import start as start_process
from agentenv.isolation.gvisor import bundle
from agentenv.isolation.gvisor import machine as machine_module
from agentenv.isolation.gvisor.checkpoint import AGENT, FILE
from agentenv.isolation.gvisor.machine import GvisorMachine

COUNTER = """
import time
held, n = {}, 0
while True:
    n += 1
    held[n % 1000] = n
    if n % 100 == 0:
        time.sleep(0.001)
        with open('/tmp/count', 'w') as out:
            out.write(f'{n} {sum(held.values())}\\n')
        try:
            say = open('/tmp/say').read().strip()
        except FileNotFoundError:
            say = 'nothing'
        with open('/tmp/said', 'w') as out:
            out.write(say)
"""


async def counting(machine: GvisorMachine) -> Connection:
    """Starts a Python process that counts in its memory; it lasts as long as the connection, or is kept in children."""
    agent = Connection.open(machine.dial())
    start_process(agent, Command(argv=("/usr/bin/python3", "-c", COUNTER), keep=True))
    while not (await count(machine)):
        continue
    return agent


async def count(machine: GvisorMachine) -> int:
    """How far it has come; 0 before it has begun, or in the moment in which it writes."""
    words = (await shell(machine, "cat /tmp/count 2>/dev/null")).split()
    return int(words[0]) if len(words) == 2 else 0


async def test_three_children_go_on_counting_and_diverge(yard: GvisorYard, machine: GvisorMachine) -> None:
    agent = await counting(machine)
    await shell(machine, "echo the same > /root/file")
    await machine.pause()
    checkpoint = await yard.checkpoint(machine)
    await machine.resume()
    children = await asyncio.gather(*(yard.child(checkpoint) for _ in range(3)))
    at_least = await count(machine) // 2
    for number, child in enumerate(children):
        assert await shell(child, "cat /root/file") == "the same\n"
        first = await reached(child, at_least)
        await reached(child, first + 1)
        await shell(child, f"echo child {number} > /root/file; echo {number} > /tmp/say")
    for number, child in enumerate(children):
        while (await shell(child, "cat /tmp/said")).strip() != str(number):
            continue
        assert await shell(child, "cat /root/file") == f"child {number}\n"
    assert await shell(machine, "cat /root/file") == "the same\n"
    await reached(machine, await count(machine) + 1)
    agent.close()


async def reached(machine: GvisorMachine, number: int) -> int:
    """Waits until its process has counted so far, and returns how far that is."""
    while (now := await count(machine)) < number:
        continue
    return now


async def test_the_parents_commands_go_on_over_a_checkpoint(yard: GvisorYard, machine: GvisorMachine) -> None:
    agent = Connection.open(machine.dial())
    process = start_process(agent, Command(argv=("/bin/sh", "-c", "read line; echo got $line; head -c 3000000 /dev/zero"), stdin=True))
    await machine.pause()
    checkpoint = await yard.checkpoint(machine)
    await machine.resume()
    child = await yard.child(checkpoint)
    await process.send(b"this\n")
    await process.ended()
    assert process.stdout == b"got this\n" + bytes(3_000_000)
    assert (await shell(child, "echo on")) == "on\n"
    agent.close()


async def test_a_child_has_a_child(yard: GvisorYard, machine: GvisorMachine) -> None:
    agent = await counting(machine)
    await machine.pause()
    first = await yard.child(await yard.checkpoint(machine))
    await first.pause()
    second = await yard.child(await yard.checkpoint(first))
    await reached(second, 1)
    await machine.kill()
    await first.kill()
    now = await count(second)
    await reached(second, now + 1)
    agent.close()


async def test_a_restored_one_can_be_paused_killed_and_leaves_nothing(yard: GvisorYard, machine: GvisorMachine) -> None:
    await machine.pause()
    checkpoint = await yard.checkpoint(machine)
    child = await yard.child(checkpoint)
    await child.pause()
    await child.resume()
    assert [stage.name for stage in child.stages] == ["prepare", "cgroup", "launch", "agent"]
    for one in (machine, child):
        await one.kill()
        await one.freed()
    assert yard.leftovers() == NOTHING


async def test_a_running_machine_is_not_written_down(yard: GvisorYard, machine: GvisorMachine) -> None:
    with pytest.raises(InvalidState, match="runs"):
        await yard.checkpoint(machine)


def _truncate(memory: Path) -> None:
    pages = memory / "pages.img"
    with pages.open("r+b") as file:
        file.truncate(pages.stat().st_size // 2)


def _garble(memory: Path) -> None:
    (memory / "checkpoint.img").write_bytes(b"nothing of the kind")


def _forget(memory: Path) -> None:
    (memory / FILE).unlink()


def _damage_agent(memory: Path) -> None:
    (memory / AGENT).write_bytes(b"another program")


def _other_version(memory: Path) -> None:
    content = (memory / FILE).read_bytes()
    (memory / FILE).write_bytes(content.replace(b"runsc 2", b"runsc 1"))


@pytest.mark.parametrize(
    ("damage", "error", "told"),
    [
        (_truncate, InfrastructureError, "runsc could not make the sandbox"),
        (_garble, InfrastructureError, "runsc could not make the sandbox"),
        (_forget, InfrastructureError, "no whole gVisor checkpoint"),
        (_damage_agent, InfrastructureError, "its agent is damaged"),
        (_other_version, CapabilityError, "was made by runsc 1"),
    ],
    ids=["truncated", "garbled", "incomplete", "another agent", "another version"],
)
async def test_a_damaged_checkpoint_is_refused_and_leaves_nothing(
    yard: GvisorYard, machine: GvisorMachine, damage: Callable[[Path], None], error: type[Exception], told: str
) -> None:
    await machine.pause()
    checkpoint = await yard.checkpoint(machine)
    await machine.kill()
    await machine.freed()
    damage(checkpoint / "memory")
    with pytest.raises(error, match=told):
        await yard.child(checkpoint)
    assert yard.leftovers() == NOTHING


@pytest.mark.parametrize("step", ["write_facts", "_write_checkpoint"])
async def test_a_checkpoint_that_fails_leaves_an_empty_directory_and_a_machine_that_goes_on(
    yard: GvisorYard, machine: GvisorMachine, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "made to fail")

    await machine.pause()
    directory = yard.directory / "checkpoint"
    directory.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(machine_module if step == "write_facts" else GvisorMachine, step, fail)
        with pytest.raises(OSError, match="made to fail"):
            await machine.checkpoint(directory)
    assert list(directory.iterdir()) == []
    await machine.resume()
    assert await shell(machine, "echo on") == "on\n"


async def test_a_child_runs_its_parents_agent_though_another_is_installed(
    yard: GvisorYard, machine: GvisorMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await machine.pause()
    checkpoint = await yard.checkpoint(machine)
    other = tmp_path / "agent"
    other.write_bytes(bytes(1 << 18))
    monkeypatch.setattr(bundle, "binary", lambda _: other)
    child = await yard.child(checkpoint)
    assert await shell(child, "echo goes on") == "goes on\n"
    await child.pause()
    grandchild = await yard.child(await yard.checkpoint(child))
    assert await shell(grandchild, "echo on and on") == "on and on\n"


async def test_what_gvisor_cannot_write_down_is_told(yard: GvisorYard, machine: GvisorMachine) -> None:
    agent = Connection.open(machine.dial())
    start_process(agent, Command(argv=("/bin/sh", "-c", "exec 9>/root/gone; rm /root/gone; touch /tmp/ready; sleep 100")))
    while "ready" not in await shell(machine, "ls /tmp"):
        continue
    await machine.pause()
    with pytest.raises(InfrastructureError, match="the checkpoint of sandbox"):
        await yard.checkpoint(machine)
    await machine.resume()
    assert await shell(machine, "echo on") == "on\n"
    agent.close()
