"""Checks of forks: children are what their parent was, apart from then on, and each is somebody else to the world."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from agentenv.conformance.life import expect_no_others, expect_right_time
from agentenv.conformance.resident import Resident, converse, start_resident
from agentenv.conformance.subject import Subject
from agentenv.isolation.conformance import check, expect, expect_equal
from agentenv.sandbox import AsyncSandbox

HYGIENE_CHILDREN = 8
_SWEEPS = 4
_ENDING = 30.0
"""Seconds within which a program in a child hears that its connections have ended."""

_HOOK = "#!/bin/sh\necho ran >> /root/hook\nhostname > /root/hook-name\n"


@check("forks.files", needs=("filesystem_snapshot",))
async def files(subject: Subject) -> None:
    """Three children see their parent's files, write their own, and neither sees another's; the parent goes on."""
    parent = await subject.create()
    await parent.commands.run("mkdir /root/dir; echo parent > /root/dir/file; ln -s file /root/dir/link", check=True)
    children = await subject.fork(parent, 3)
    expect_equal("the number of different ids", len({parent.id, *(child.id for child in children)}), 4)
    for number, child in enumerate(children):
        expect_equal("a child's file", await child.files.read("/root/dir/link"), "parent\n")
        await child.files.write("/root/dir/file", f"child {number}")
        await child.files.remove("/root/dir/link")
    for number, child in enumerate(children):
        expect_equal("a child's own file", await child.files.read("/root/dir/file"), f"child {number}")
    expect_equal("the parent's file", await parent.files.read("/root/dir/link"), "parent\n")


@check("forks.outlive", needs=("filesystem_snapshot",))
async def outlive(subject: Subject) -> None:
    """Children, and their children, live on when those before them are gone."""
    parent = await subject.create()
    await parent.files.write("/root/file", "one")
    (child,) = await subject.fork(parent, 1)
    await parent.kill()
    await child.files.write("/root/other", "two")
    (grandchild,) = await subject.fork(child, 1)
    await child.kill()
    told = [await grandchild.files.read(path) for path in ("/root/file", "/root/other")]
    expect_equal("the files of the grandchild", told, ["one", "two"])


@check("forks.paused", needs=("filesystem_snapshot", "pause"))
async def paused(subject: Subject) -> None:
    """A paused sandbox can be forked: it stays paused, its children run."""
    parent = await subject.create()
    await parent.pause()
    (child,) = await subject.fork(parent, 1)
    expect_equal("the states", (parent.state, child.state), ("paused", "running"))
    expect_equal("what the child prints", (await child.commands.run("echo on")).stdout, "on\n")


@check("forks.broken-off", needs=("filesystem_snapshot",), seconds=300)
async def broken_off(subject: Subject) -> None:
    """A fork that is given up at any moment leaves no child, and the parent goes on."""
    parent = await subject.create()
    since = time.monotonic()
    await subject.fork(parent, 2)
    whole = time.monotonic() - since
    for number in range(_SWEEPS):
        begun = asyncio.ensure_future(subject.fork(parent, 2))
        await asyncio.wait({begun}, timeout=whole * (number + 0.5) / _SWEEPS)
        begun.cancel()
        await asyncio.wait({begun})
        expect_equal("what the parent prints", (await parent.commands.run("echo on")).stdout, "on\n")
    await subject.tidy()
    await expect_no_others(subject, 0)


@check("forks.memory", needs=("memory_snapshot",), seconds=300)
async def memory(subject: Subject) -> None:
    """A program that counts in its memory goes on in three children and in the parent, each for itself, with the same open files."""
    parent = await subject.create()
    await subject.require(parent, "python3")
    resident = await start_resident(parent)
    before = await resident.ask(parent, "100")
    children = await subject.fork(parent, 3, memory=True)
    for number, child in enumerate(children):
        told = await resident.ask(child)
        expect_equal("the value in a child", told.value, 100)
        expect(told.ticks >= before.ticks, f"the program of a child has lost ticks: {told.ticks} after {before.ticks}.")
        expect_equal("the commands of a child", [one.pid for one in await child.commands.list()], [resident.pid])
        await resident.ask(child, str(200 + number))
    found = [(await resident.ask(one)).value for one in (parent, *children)]
    expect_equal("the values of parent and children, each having been given its own", found, [100, 200, 201, 202])
    for one in (parent, *children):
        await resident.ticks_on(one)
    (grandchild,) = await subject.fork(children[0], 1, memory=True)
    expect_equal("the value in a child's child", (await resident.ask(grandchild)).value, 200)


@check("forks.running-command", needs=("memory_snapshot",))
async def running_command(subject: Subject) -> None:
    """A command that runs in the parent over a fork prints all to the parent; in a child it is found again by its number."""
    parent = await subject.create()
    line = "read line; echo got $line"
    handle = await parent.commands.run(line, background=True, stdin=True)
    (child,) = await subject.fork(parent, 1, memory=True)
    again = await child.commands.connect(handle.pid)
    await again.send_stdin("the child's\n")
    await handle.send_stdin("the parent's\n")
    told = [(await one.wait()).stdout for one in (handle, again)]
    expect_equal("what the command prints in the parent and in the child", told, ["got the parent's\n", "got the child's\n"])


@check("forks.hygiene", needs=("filesystem_snapshot",), seconds=300)
async def hygiene(subject: Subject) -> None:
    """Of eight children each has a name, a machine-id, random numbers and a directory of its own, and the right time."""
    parent = await subject.create()
    await parent.files.write("/root/file", "the same")
    children = await subject.fork(parent, HYGIENE_CHILDREN)
    await _expect_somebody_else(parent, children)
    for one in (parent, *children):
        expect_equal("its file", await one.files.read("/root/file"), "the same")


@check("forks.after-memory", needs=("memory_snapshot",), seconds=300)
async def after_memory(subject: Subject) -> None:
    """In a child that goes on from memory the parent's connections have ended, and the image's hooks have run; in the parent neither."""
    await _expect_hygiene_of_memory(subject, 1)


@check("forks.memory-of-eight", needs=("memory_snapshot",), seconds=600)
async def memory_of_eight(subject: Subject) -> None:
    """Eight children of one memory are the same within, each somebody else without: connections ended, hooks run, names, random numbers."""
    await _expect_hygiene_of_memory(subject, HYGIENE_CHILDREN)


async def _expect_hygiene_of_memory(subject: Subject, count: int) -> None:
    parent = await subject.create()
    await subject.require(parent, "python3")
    await parent.files.write("/etc/agentenv/restored.d/10-mark", _HOOK, mode=0o755)
    resident = await start_resident(parent)
    connection = await parent.dial(resident.port)
    try:
        before = await asyncio.to_thread(converse, connection, "1")
        children = await subject.fork(parent, count, memory=True)
        expect(not await parent.files.exists("/root/hook"), "the hook has run in the parent.")
        expect_equal("the answer on the parent's connection", (await asyncio.to_thread(converse, connection, "add")).value, 2)
    finally:
        connection.close()
    await _expect_somebody_else(parent, children)
    for child in children:
        expect_equal("what the hook wrote in a child", await child.files.read("/root/hook"), "ran\n")
        expect_equal("the name that the hook saw", (await child.files.read("/root/hook-name")).strip(), child.id)
        told = await resident.ask(child)
        expect_equal("the value in a child", told.value, 1)
        expect(told.ticks >= before.ticks, f"the program of a child has lost ticks: {told.ticks} after {before.ticks}.")
        await _until_ended(resident, child)


async def _until_ended(resident: Resident, child: AsyncSandbox) -> None:
    """Returns when the program has no connection but the one on which it is asked."""
    latest = time.monotonic() + _ENDING
    while (await resident.ask(child)).connections > 1:
        expect(time.monotonic() < latest, "a connection of the parent is still open in a child.")


async def _expect_somebody_else(parent: AsyncSandbox, children: Sequence[AsyncSandbox]) -> None:
    everybody = [parent, *children]
    await _expect_different(everybody, "random numbers", "head -c 16 /dev/urandom | od -An -tx1")
    await _expect_different(everybody, "machine-id", "cat /etc/machine-id")
    await _expect_different(everybody, "kernel's name", "hostname")
    for child in children:
        names = (await child.commands.run("hostname; cat /etc/hostname")).stdout.split()
        expect_equal("a child's name, from its kernel and its file", names, [child.id, child.id])
    for one in everybody:
        await expect_right_time(one)


async def _expect_different(sandboxes: Sequence[AsyncSandbox], what: str, line: str) -> None:
    told = [(await one.commands.run(line, check=True)).stdout.strip() for one in sandboxes]
    expect(all(told), f"one of them has no {what}.")
    expect(len(set(told)) == len(told), f"parent and children do not all differ in {what}: {told}.")


CHECKS = (files, outlive, paused, broken_off, memory, running_command, hygiene, after_memory, memory_of_eight)
