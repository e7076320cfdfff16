"""Checks of standing still and of going on: pause, resume, and machines that start from another's memory."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agentenv.errors import AgentEnvError, CapabilityError, InvalidState, StartupTimeout
from agentenv.guest import Command, Connection
from agentenv.guest.processes import Tap
from agentenv.guest.processes import start as start_process
from agentenv.isolation.conformance.check import CheckFailed, check, expect, expect_equal, expect_refusal
from agentenv.isolation.conformance.yard import TOO_SHORT, Yard, count, counting, reached, shell
from agentenv.isolation.contract import Checkpointing, Machine, MachineSpec, Restoring, Timeouts

_QUIET = 0.5
"""Seconds without output after which a machine counts as standing still; its program prints without a pause."""

_SWEEPS = 4

_LONGEST_FACTS = 1 << 16
OTHER_VERSION = "90210"
"""What no format and no program of a backend is called."""

_SETTLING = 3.0
"""Seconds within which what was printed before a pause has come."""


@check("machine-pause.stops", needs=("pause",))
async def stops(yard: Yard) -> None:
    """A paused machine does nothing; a resumed one goes on where it was; both may be repeated."""
    machine = await yard.start()
    connection = Connection.open(machine.dial())
    process = start_process(connection, Command(argv=("/bin/sh", "-c", "n=0; while :; do n=$((n + 1)); echo $n; done")))
    tap = process.tap()
    expect(await tap.next() is not None, "its program printed nothing.")
    await machine.pause()
    await machine.pause()
    await _until_quiet(tap)
    await machine.resume()
    await machine.resume()
    piece = await asyncio.wait_for(tap.next(), 30)
    expect(piece is not None, "its program ended by the pause.")
    connection.close()


@check("machine-pause.kill", needs=("pause",))
async def kill_while_paused(yard: Yard) -> None:
    """A paused machine can be killed, and leaves nothing."""
    machine = await yard.start()
    await shell(machine, "sleep 1000 >/dev/null 2>&1 &")
    await machine.pause()
    expect((await machine.kill()).reason, "it does not say how it ended.")
    await yard.expect_nothing_left(yard.directory_of(machine), "a machine that was killed while paused")


@check("machine-memory.claim", needs=("memory_snapshot",))
async def claim(yard: Yard) -> None:
    """A backend that claims memory snapshots has `restore`, and its machines `checkpoint`."""
    has = isinstance(yard.backend, Restoring), isinstance(await yard.start(), Checkpointing)
    expect_equal("whether the backend has `restore` and its machine `checkpoint`", has, (True, True))


@check("machine-memory.restore", needs=("memory_snapshot",), seconds=300)
async def restore(yard: Yard) -> None:
    """Machines that start from a checkpoint go on counting where it was taken, with its files, each for itself; so does the first."""
    machine = await yard.start()
    (await counting(machine)).close()
    await shell(machine, "echo the same > /root/file")
    checkpoint, at_least = await take_checkpoint(yard, machine)
    children = [await start_from(yard, checkpoint) for _ in range(2)]
    for number, child in enumerate(children):
        expect_equal("the file in a child", await shell(child, "cat /root/file"), "the same\n")
        now = await count(child)
        expect(now == 0 or now >= at_least, f"a child's counter stands at {now}; at the checkpoint it was at least {at_least}.")
        await reached(child, max(now, at_least) + 1)
        await shell(child, f"echo {number} > /root/file")
    for number, child in enumerate(children):
        expect_equal("a child's own file", await shell(child, "cat /root/file"), f"{number}\n")
    expect_equal("the file of the first machine", await shell(machine, "cat /root/file"), "the same\n")
    await reached(machine, await count(machine) + 1)


@check("machine-memory.of-a-child", needs=("memory_snapshot",), seconds=300)
async def checkpoint_of_a_child(yard: Yard) -> None:
    """A machine that started from a checkpoint can be written down itself, also when the first is gone."""
    machine = await yard.start()
    (await counting(machine)).close()
    checkpoint, _ = await take_checkpoint(yard, machine)
    child = await start_from(yard, checkpoint)
    await machine.kill()
    second, at_least = await take_checkpoint(yard, child)
    await child.kill()
    grandchild = await start_from(yard, second)
    await reached(grandchild, at_least + 1)


@check("machine-memory.running", needs=("memory_snapshot",))
async def running_is_refused(yard: Yard) -> None:
    """A machine that runs is not written down, and goes on."""
    machine = await yard.start()
    directory = yard.directory / f"checkpoint-{secrets.token_hex(4)}"
    directory.mkdir()
    with expect_refusal("a checkpoint of a running machine", InvalidState):
        await _checkpointing(machine).checkpoint(directory)
    expect_equal("what it prints then", await shell(machine, "echo on"), "on\n")


@check("machine-memory.damaged", needs=("memory_snapshot",), seconds=300)
async def damaged(yard: Yard) -> None:
    """A checkpoint of which any file is missing or cut in half is one typed error, which leaves nothing."""
    machine = await yard.start()
    checkpoint, _ = await take_checkpoint(yard, machine)
    await machine.kill()
    for file in sorted(path for path in (checkpoint / "memory").rglob("*") if path.is_file()):
        await _expect_damage_noticed(yard, checkpoint, file)


@check("machine-memory.version", needs=("memory_snapshot",), seconds=300)
async def version(yard: Yard) -> None:
    """A checkpoint of another format, or of another version of the backend's program, is refused by saying so, which leaves nothing."""
    machine = await yard.start()
    checkpoint, _ = await take_checkpoint(yard, machine)
    await machine.kill()
    changes = await asyncio.to_thread(_of_other_versions, checkpoint / "memory", yard.probe.version or "")
    expect(changes, "no file of the checkpoint is a mapping with a `format`, so that one of another format cannot be told from it.")
    for file, field, content in changes:
        before = await asyncio.to_thread(file.read_bytes)
        await asyncio.to_thread(file.write_bytes, content)
        spec = yard.spec()
        with expect_refusal(f"a checkpoint of another {field}", CapabilityError) as caught:
            yard.keep(await _restored(yard, checkpoint, spec))
        error = caught[0]
        assert isinstance(error, CapabilityError)
        expect(OTHER_VERSION in str(error) and error.remedy, f"it names neither the other {field} nor a way out: {error}")
        await yard.expect_nothing_left(spec.directory, f"a start from a checkpoint of another {field}")
        await asyncio.to_thread(file.write_bytes, before)
    yard.keep(await _restored(yard, checkpoint, yard.spec()))


@check("machine-memory.broken-off", needs=("memory_snapshot",), seconds=300)
async def broken_off(yard: Yard) -> None:
    """A start from a checkpoint that takes too long is a `StartupTimeout`; one that is given up at any moment leaves nothing."""
    machine = await yard.start()
    checkpoint, _ = await take_checkpoint(yard, machine)
    spec = yard.spec(timeouts=Timeouts(startup=TOO_SHORT))
    with expect_refusal(f"a start from a checkpoint within {TOO_SHORT:g} s", StartupTimeout):
        yard.keep(await _restored(yard, checkpoint, spec))
    await yard.expect_nothing_left(spec.directory, "a start from a checkpoint that timed out")
    whole = sum(stage.seconds for stage in (await start_from(yard, checkpoint)).stages)
    for number in range(_SWEEPS):
        spec = yard.spec()
        begun = asyncio.ensure_future(_restored(yard, checkpoint, spec))
        await asyncio.wait({begun}, timeout=whole * (number + 1) / (_SWEEPS + 1))
        begun.cancel()
        await asyncio.wait({begun})
        if not begun.cancelled():
            yard.keep(begun.result())  # it was quicker than the last time
            continue
        await yard.expect_nothing_left(spec.directory, f"a start from a checkpoint given up after {number + 1}/{_SWEEPS + 1} of its time")
    expect_equal("what the first machine prints then", await shell(machine, "echo on"), "on\n")


async def take_checkpoint(yard: Yard, machine: Machine) -> tuple[Path, int]:
    """Writes the machine down with its files, as the node does; returns where, and how far its counter had at least come."""
    directory = yard.directory / f"checkpoint-{secrets.token_hex(4)}"
    (directory / "memory").mkdir(parents=True)
    at_least = await count(machine)
    agent = Connection.open(machine.dial())
    await agent.call("freeze", seconds=60.0)
    await machine.pause()
    try:
        await _checkpointing(machine).checkpoint(directory / "memory")
        await asyncio.to_thread(_copy, yard.directory_of(machine) / "upper", directory / "upper")
    finally:
        await machine.resume()
    await agent.call("thaw")
    agent.close()
    return directory, at_least


async def start_from(yard: Yard, checkpoint: Path) -> Machine:
    """A machine that goes on from a checkpoint and has been told that it is another one."""
    machine = yard.keep(await _restored(yard, checkpoint, yard.spec()))
    agent = Connection.open(machine.dial())
    await agent.call(
        "restored", entropy=os.urandom(64), realtime_ns=time.time_ns(), hostname=f"box-{machine.id}", machine_id=secrets.token_hex(16)
    )
    agent.close()
    return machine


async def _restored(yard: Yard, checkpoint: Path, spec: MachineSpec) -> Machine:
    if not isinstance(yard.backend, Restoring):
        raise CheckFailed("the backend claims memory snapshots and has no `restore`.")
    await asyncio.to_thread(_copy, checkpoint / "upper", spec.directory / "upper")
    return await yard.backend.restore(spec, checkpoint / "memory")


async def _expect_damage_noticed(yard: Yard, checkpoint: Path, file: Path) -> None:
    content = await asyncio.to_thread(file.read_bytes)
    if len(content) < 2:
        return
    name = file.relative_to(checkpoint / "memory")
    for what in ("is cut in half", "is missing"):
        await asyncio.to_thread(file.unlink if what == "is missing" else partial(os.truncate, file, len(content) // 2))
        spec = yard.spec()
        with expect_refusal(f"a checkpoint whose {name} {what}", AgentEnvError):
            yard.keep(await _restored(yard, checkpoint, spec))
        await yard.expect_nothing_left(spec.directory, f"a start from a checkpoint whose {name} {what}")
        await asyncio.to_thread(file.write_bytes, content)


def _of_other_versions(memory: Path, program: str) -> list[tuple[Path, str, bytes]]:
    """For each file that says how the checkpoint was made: what would stand in it had that been otherwise, and the field that differs.

    Such a file is a mapping in JSON or MessagePack with a `format`; a field whose text stands in `program` is the version of that.
    """
    found = []
    for file in sorted(path for path in memory.rglob("*") if path.is_file() and path.stat().st_size <= _LONGEST_FACTS):
        for codec in (msgspec.json, msgspec.msgpack):
            with suppress(msgspec.MsgspecError):
                facts = codec.decode(file.read_bytes(), type=dict[str, Any])
                if "format" in facts:
                    versions = [name for name, value in facts.items() if isinstance(value, str) and value and value in program]
                    others = {"format": int(OTHER_VERSION), **dict.fromkeys(versions, OTHER_VERSION)}
                    found += [(file, name, codec.encode({**facts, name: other})) for name, other in others.items()]
    return found


def _checkpointing(machine: Machine) -> Checkpointing:
    if not isinstance(machine, Checkpointing):
        raise CheckFailed("the backend claims memory snapshots and its machine has no `checkpoint`.")
    return machine


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        subprocess.run(["cp", "-a", "--sparse=always", "--reflink=auto", source, target], check=True)
    else:
        shutil.rmtree(target, ignore_errors=True)


async def _until_quiet(tap: Tap) -> None:
    """Takes what was still on its way. Raises `CheckFailed` when more and more comes."""
    taken, latest = 0, time.monotonic() + _SETTLING
    while time.monotonic() < latest:
        try:
            piece = await asyncio.wait_for(tap.next(), _QUIET)
        except TimeoutError:
            return
        if piece is None:
            raise CheckFailed("the program ended by the pause.")
        taken += len(piece[1])
    raise CheckFailed(f"a paused machine goes on printing: {taken} bytes came after the pause.")


CHECKS = (stops, kill_while_paused, claim, restore, checkpoint_of_a_child, running_is_refused, damaged, version, broken_off)
