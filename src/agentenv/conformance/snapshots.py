"""Checks of snapshots: what is kept, going back to any of them, starting from them, and what a broken-off one leaves."""

from __future__ import annotations

import asyncio
import json

from agentenv.conformance.life import expect_alive
from agentenv.conformance.resident import start_resident
from agentenv.conformance.subject import PATIENT, Subject
from agentenv.errors import CapabilityError, InvalidState, NotFound
from agentenv.isolation.conformance import check, expect, expect_equal, expect_refusal
from agentenv.node import Node
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox import AsyncSandbox

_SWEEPS = 4

_FILES = """
mkdir -p /root/kept/below && cd /root/kept
head -c 100000 /dev/zero > large; echo content > below/file; ln -s below/file link; ln large hard
chmod 4711 below/file; rm -f /etc/hosts.allow; echo more >> /etc/profile; touch -d 2001-02-03T04:05:06Z large
"""
_DESCRIBE = """
cd /root/kept && find . -printf '%p %y %m %l %n\\n' | sort; stat -c %Y large; cat link; tail -n 1 /etc/profile
sha256sum large | cut -c-64
"""


@check("snapshots.files", needs=("filesystem_snapshot",))
async def files(subject: Subject) -> None:
    """A sandbox from a snapshot has its files as they were: contents, modes, times, links; what either writes later is its own."""
    first = await subject.create()
    await first.commands.run(_FILES, check=True)
    wanted = (await first.commands.run(_DESCRIBE, check=True)).stdout
    taken = await subject.snapshot(first, memory=False)
    await first.commands.run("echo later > /root/kept/below/file; rm /root/kept/large")
    second = await subject.create(snapshot=taken)
    expect_equal("the files of the second", (await second.commands.run(_DESCRIBE, check=True)).stdout, wanted)
    await second.files.write("/root/kept/below/file", "the second's")
    expect_equal("the file of the first", await first.files.read("/root/kept/below/file"), "later\n")


@check("snapshots.rollback", needs=("filesystem_snapshot",))
async def rollback(subject: Subject) -> None:
    """A rollback to files puts them back, ends every process, keeps the id, and says to whoever still waits what became of it."""
    sandbox = await subject.create()
    await sandbox.files.write("/root/file", "one")
    taken = await subject.snapshot(sandbox, memory=False)
    await sandbox.files.write("/root/file", "two")
    await sandbox.files.write("/root/other", "two")
    handle = await sandbox.commands.run("sleep 1000", background=True)
    before, generation = sandbox.id, sandbox.generation
    await sandbox.rollback(taken)
    expect_equal("the id", sandbox.id, before)
    expect_equal("the generation", sandbox.generation, generation + 1)
    expect_equal("the file", await sandbox.files.read("/root/file"), "one")
    expect(not await sandbox.files.exists("/root/other"), "a file from after the snapshot is still there.")
    expect_equal("the commands that run", await sandbox.commands.list(), [])
    with expect_refusal("waiting for a command of the time before", InvalidState):
        await handle.wait()


@check("snapshots.tree", needs=("filesystem_snapshot",))
async def tree(subject: Subject) -> None:
    """Snapshots form a tree: a sandbox goes back to any of them, whichever it was at, and each knows the one before it."""
    sandbox = await subject.create()
    taken: dict[str, Snapshot] = {}
    for name, start in (("a", None), ("b", None), ("c", "a"), ("d", "b")):
        if start:
            await sandbox.rollback(taken[start])
        await sandbox.commands.run(f"echo {name} >> /root/path", check=True)
        taken[name] = await subject.snapshot(sandbox, memory=False)
    parents = {name: next((other for other, one in taken.items() if one.id == taken[name].parent), None) for name in taken}
    expect_equal("the parents", parents, {"a": None, "b": "a", "c": "a", "d": "b"})
    for name, path in (("c", "a c"), ("d", "a b d"), ("a", "a"), ("b", "a b")):
        await sandbox.rollback(taken[name])
        expect_equal(f"the file after going back to {name}", (await sandbox.files.read("/root/path")).split(), path.split())


@check("snapshots.while-writing", needs=("filesystem_snapshot",))
async def while_writing(subject: Subject) -> None:
    """A snapshot of files shows one moment: of two files that are written in turn none is ahead by more than one line."""
    sandbox = await subject.create()
    line = "i=0; while :; do i=$((i + 1)); echo $i >> /root/first; echo $i >> /root/second; done"
    await sandbox.commands.run(["sh", "-c", line], background=True)
    for _ in range(3):
        await sandbox.commands.run("n=$(wc -l < /root/second); until [ $(wc -l < /root/second) -gt $n ]; do :; done", timeout=60)
        child = await subject.create(snapshot=await subject.snapshot(sandbox, memory=False))
        told = await child.commands.run("tail -n 1 /root/first; tail -n 1 /root/second; wc -l < /root/first; wc -l < /root/second")
        first, second, lines, other_lines = map(int, told.stdout.split())
        expect(0 <= first - second <= 1, f"one file ends with {first}, the other with {second}.")
        expect_equal("the numbers of lines", (lines, other_lines), (first, second))
        await child.kill()


@check("snapshots.paused", needs=("filesystem_snapshot", "pause"))
async def paused(subject: Subject) -> None:
    """A paused sandbox can be snapshotted, and stays paused."""
    sandbox = await subject.create()
    await sandbox.files.write("/root/file", "as it was")
    await sandbox.pause()
    taken = await subject.snapshot(sandbox, memory=False)
    expect_equal("its state", sandbox.state, "paused")
    second = await subject.create(snapshot=taken)
    expect_equal("the file of another from the snapshot", await second.files.read("/root/file"), "as it was")
    await sandbox.resume()
    await expect_alive(sandbox)


@check("snapshots.broken-off", needs=("filesystem_snapshot",), seconds=300)
async def broken_off(subject: Subject) -> None:
    """A snapshot that is given up at any moment, or whose sandbox is killed meanwhile, leaves nothing; the sandbox goes on."""
    sandbox = await subject.create()
    await sandbox.commands.run(
        "mkdir /root/many; cd /root/many; i=0; while [ $i -lt 500 ]; do echo $i > $i; i=$((i + 1)); done", check=True
    )
    known = [one.id for one in await subject.node.snapshots()]
    for number in range(_SWEEPS):
        begun = asyncio.ensure_future(sandbox.snapshot())
        await asyncio.wait({begun}, timeout=0.02 * number)
        begun.cancel()
        await asyncio.wait({begun})
        if not begun.cancelled():
            await subject.node.delete_snapshot(begun.result().id)
        await expect_alive(sandbox)
    begun = asyncio.ensure_future(sandbox.snapshot())
    await asyncio.wait({begun}, timeout=0.01)
    await sandbox.kill()
    await asyncio.wait({begun})
    if begun.exception() is None:
        await subject.node.delete_snapshot(begun.result().id)
    expect_equal("the snapshots", [one.id for one in await subject.node.snapshots()], known)
    await subject.node.collect_garbage()
    left = await asyncio.to_thread(lambda: list((subject.node.owner.directory / "staging").iterdir()))
    expect_equal("what is left half made", left, [])


@check("snapshots.deleted", needs=("filesystem_snapshot",))
async def deleted(subject: Subject) -> None:
    """A deleted snapshot is gone for those who name it; a sandbox that started from it lives on."""
    sandbox = await subject.create()
    await sandbox.files.write("/root/file", "kept")
    taken = await subject.snapshot(sandbox)
    child = await subject.create(snapshot=taken)
    await subject.node.delete_snapshot(taken.id)
    with expect_refusal("a start from a deleted snapshot", NotFound):
        await subject.create(snapshot=taken)
    expect_equal("the file of one that started from it", await child.files.read("/root/file"), "kept")


@check("snapshots.other-image", needs=("filesystem_snapshot",))
async def other_image(subject: Subject) -> None:
    """A snapshot whose image is not what it was made on any more is refused by naming both; nothing is started, and a sandbox goes on."""
    sandbox = await subject.create()
    taken = await subject.snapshot(sandbox, memory=False)
    written = subject.node.home / "snapshots" / "tree" / f"{taken.id}.json"
    facts = json.loads(await asyncio.to_thread(written.read_bytes))
    await asyncio.to_thread(written.write_text, json.dumps({**facts, "base": "another image"}))
    async with await Node.open(subject.node.home) as other:
        with expect_refusal("a start from a snapshot of another image", CapabilityError) as caught:
            subject.keep(await AsyncSandbox.create(snapshot=taken.id, isolation=subject.isolation, timeouts=PATIENT, node=other))
        expect("another image" in str(caught[0]) and taken.base in str(caught[0]), f"it does not name both images: {caught[0]}")
        expect_equal("the sandboxes that were started", [one.id for one in other.list() if one.owner == other.owner.id], [])
    await expect_alive(sandbox)


@check("snapshots.memory", needs=("memory_snapshot",), seconds=300)
async def memory(subject: Subject) -> None:
    """A snapshot of memory keeps processes: after a rollback, and in a sandbox that starts from it, they hold what they held."""
    sandbox = await subject.create()
    await subject.require(sandbox, "python3")
    resident = await start_resident(sandbox)
    at_snapshot = await resident.ask(sandbox, "5")
    await sandbox.files.write("/root/file", "five")
    taken = await subject.snapshot(sandbox, memory=True)
    expect_equal("the value right after the snapshot", (await resident.ask(sandbox)).value, 5)
    await resident.ask(sandbox, "6")
    await sandbox.files.write("/root/file", "six")
    second = await subject.create(snapshot=taken)
    await sandbox.rollback(taken)
    for name, one in (("rolled-back sandbox", sandbox), ("sandbox from the snapshot", second)):
        told = await resident.ask(one)
        expect_equal(f"the value in the {name}", told.value, 5)
        expect(told.ticks >= at_snapshot.ticks, f"the program in the {name} has lost ticks: {told.ticks} after {at_snapshot.ticks}.")
        expect_equal(f"the file of the {name}", await one.files.read("/root/file"), "five")
        expect_equal(f"the commands of the {name}", [one.pid for one in await one.commands.list()], [resident.pid])
        await resident.ticks_on(one)
    await resident.ask(sandbox, "7")
    await resident.ask(second, "8")
    expect_equal("their values then", [(await resident.ask(one)).value for one in (sandbox, second)], [7, 8])


@check("snapshots.files-of-memory", needs=("memory_snapshot",))
async def files_of_memory(subject: Subject) -> None:
    """Of a snapshot with memory the files alone can be used, too: then no process goes on."""
    sandbox = await subject.create()
    await sandbox.commands.run("sleep 1000", background=True)
    await sandbox.files.write("/root/file", "kept")
    taken = await subject.snapshot(sandbox, memory=True)
    second = await subject.create(snapshot=taken, memory=False)
    expect_equal("the file", await second.files.read("/root/file"), "kept")
    expect_equal("the commands that run", await second.commands.list(), [])


CHECKS = (files, rollback, tree, while_writing, paused, broken_off, deleted, other_image, memory, files_of_memory)
