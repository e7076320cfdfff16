"""One sandbox, changed at random and paused, snapshotted, rolled back at random: after each step all is as a model says.

The model is kept on this side: each file with its kind, mode and content, the commands that run, and a number in a process's memory.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field, replace

from agentenv.conformance.resident import Resident, start_resident
from agentenv.conformance.subject import Subject
from agentenv.isolation.conformance import CheckFailed, check
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox import AsyncSandbox

PLACE = "/root/cycles"
NAMES = tuple(f"{directory}{name}" for directory in ("", "d/", "e/f/") for name in ("a", "b", "c", "ü ☃"))
SIZES = (0, 1, 4096, 4097, 70_000, 300_000)

_LOOK = f"""
cd {PLACE} && find . -mindepth 1 -printf '%P\\t%y\\t%m\\t%l\\n' | sort && echo = && find . -type f -exec sha256sum {{}} + && echo = &&
find /etc /home /opt /srv -xdev -type f ! -path /etc/machine-id ! -path /etc/hostname ! -path /etc/hosts \\
-exec sha256sum {{}} + 2>/dev/null | sort | sha256sum
"""
"""What there is in the place, and one digest for every other file of the system that a sandbox is likely to change."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A path's kind (as `find` calls it), its mode, and a file's digest or a link's target."""

    kind: str
    mode: int
    content: str


@dataclass(frozen=True, slots=True)
class State:
    """What there should be. `resident` is None where no program runs; `value` is the number in its memory."""

    entries: dict[str, Entry] = field(default_factory=dict)
    resident: Resident | None = None
    value: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A snapshot with the state at that moment."""

    snapshot: Snapshot
    state: State
    memory: bool


class Walk:
    """One sandbox on its way through random changes.

    `state` is what there should be, `trail` says what was done, for whoever has to repeat it.
    """

    def __init__(self, subject: Subject, sandbox: AsyncSandbox, seed: int) -> None:
        self._subject = subject
        self._sandbox = sandbox
        self._choice = random.Random(seed)
        self.state = State()
        self._marks: list[Mark] = []
        self._elsewhere: str | None = None
        self._python = True
        self.trail: list[str] = []

    async def begin(self) -> None:
        """Makes the place, and starts the program where the image can run it."""
        self._python = (await self._sandbox.commands.run("command -v python3")).exit_code == 0
        await self._sandbox.files.make_dir(PLACE)
        await self._revive()
        await self.compare()

    async def step(self) -> None:
        """One change of state, a few changes of files, and a look at all."""
        capabilities = self._subject.capabilities
        moves = [self._mark]
        if capabilities.pause:
            moves += [self._pause, self._pause_and_mark]
        if capabilities.memory_snapshot:
            moves.append(self._sleep)
        if self._marks:
            moves += [self._go_back, self._go_back]
        for _ in range(self._choice.randrange(1, 4)):
            await self._change()
        await self._choice.choice(moves)()
        await self.compare()

    async def compare(self) -> None:
        """Raises `CheckFailed` where the sandbox is not as the model says."""
        told = await self._sandbox.commands.run(_LOOK, check=True)
        listing, digests, elsewhere = told.stdout.split("=\n")
        found = _parsed(listing, digests)
        if found != self.state.entries:
            raise CheckFailed(f"the files differ: {_difference(found, self.state.entries)} {self._told()}")
        if self._elsewhere not in (None, elsewhere):
            raise CheckFailed(f"files outside of {PLACE} have changed. {self._told()}")
        self._elsewhere = elsewhere
        running = [one.pid for one in await self._sandbox.commands.list()]
        wanted = [self.state.resident.pid] if self.state.resident else []
        if running != wanted:
            raise CheckFailed(f"the commands {running} run, and should be {wanted}. {self._told()}")
        if self.state.resident:
            value = (await self.state.resident.ask(self._sandbox)).value
            if value != self.state.value:
                raise CheckFailed(f"the number in memory is {value}, and should be {self.state.value}. {self._told()}")

    async def _pause(self) -> None:
        self.trail.append("pause, resume")
        await self._sandbox.pause()
        await self._sandbox.resume()

    async def _pause_and_mark(self) -> None:
        self.trail.append("pause")
        await self._sandbox.pause()
        await self._mark()
        self.trail.append("resume")
        await self._sandbox.resume()

    async def _sleep(self) -> None:
        self.trail.append("pause to the disk, resume")
        await self._sandbox.pause(to_disk=True)
        await self._sandbox.resume()

    async def _mark(self) -> None:
        memory = self._subject.capabilities.memory_snapshot and self._choice.random() < 0.6
        self.trail.append(f"snapshot {len(self._marks)}{' with memory' if memory else ''}")
        taken = await self._subject.snapshot(self._sandbox, memory=memory if self._subject.capabilities.memory_snapshot else None)
        state = self.state if memory else replace(self.state, resident=None)
        self._marks.append(Mark(taken, replace(state, entries=dict(state.entries)), memory))

    async def _go_back(self) -> None:
        number = self._choice.randrange(len(self._marks))
        mark = self._marks[number]
        self.trail.append(f"rollback to {number}")
        await self._sandbox.rollback(mark.snapshot)
        self.state = replace(mark.state, entries=dict(mark.state.entries))
        await self.compare()
        await self._revive()

    async def _revive(self) -> None:
        """Starts the program where none runs."""
        if self.state.resident is None and self._python:
            resident = await start_resident(self._sandbox)
            value = self._choice.randrange(1000, 1_000_000)
            await resident.ask(self._sandbox, str(value))
            self.state = replace(self.state, resident=resident, value=value)

    async def _change(self) -> None:
        files, entries = self._sandbox.files, self.state.entries
        path = self._choice.choice(NAMES)
        full, old = f"{PLACE}/{path}", entries.get(path)
        deed = self._choice.choice(("write", "append", "remove", "mode", "link", "count"))
        self.trail.append(f"{deed} {path}")
        if deed == "count":
            await self._count()
        elif deed == "remove":
            await files.remove(full, missing_ok=True)
            entries.pop(path, None)
        elif deed == "mode" and old is not None and old.kind == "f":
            mode = self._choice.choice((0o600, 0o644, 0o755, 0o4711))
            await files.chmod(full, mode)
            entries[path] = replace(old, mode=mode)
        elif deed == "link":
            await files.remove(full, missing_ok=True)
            await self._make_above(path)
            await files.symlink(full, "no/where")
            entries[path] = Entry("l", 0o777, "no/where")
        elif old is None or old.kind == "f":
            await self._write(path, append=deed == "append")

    async def _write(self, path: str, *, append: bool) -> None:
        content = self._choice.randbytes(self._choice.choice(SIZES))
        full, old = f"{PLACE}/{path}", self.state.entries.get(path)
        before = await self._sandbox.files.read(full, format="bytes") if append and old else b""
        await self._make_above(path)
        await self._sandbox.files.write(full, content, append=append)
        digest = hashlib.sha256(before + content).hexdigest()
        self.state.entries[path] = Entry("f", old.mode if old else 0o644, digest)

    async def _make_above(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for depth in range(len(parts)):
            above = "/".join(parts[: depth + 1])
            await self._sandbox.files.make_dir(f"{PLACE}/{above}", mode=0o755)
            self.state.entries[above] = Entry("d", 0o755, "")

    async def _count(self) -> None:
        if self.state.resident:
            await self.state.resident.ask(self._sandbox, "add")
            self.state = replace(self.state, value=self.state.value + 1)

    def _told(self) -> str:
        return f"The last steps were: {'; '.join(self.trail[-12:])}."


def _parsed(listing: str, digests: str) -> dict[str, Entry]:
    contents = {}
    for line in digests.splitlines():
        digest, _, path = line.partition("  ./")
        contents[path] = digest
    found = {}
    for line in listing.splitlines():
        path, kind, mode, target = line.split("\t")
        found[path] = Entry(kind, int(mode, 8), contents.get(path, "") if kind == "f" else target)
    return found


def _difference(found: dict[str, Entry], wanted: dict[str, Entry]) -> str:
    paths = sorted(path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path))
    return "; ".join(f"{path!r} is {found.get(path)} and should be {wanted.get(path)}" for path in paths[:3]) + "."


@check("cycles.random", needs=("filesystem_snapshot",), seconds=3600)
async def random_cycles(subject: Subject) -> None:
    """Over random pauses, snapshots and rollbacks every file, the commands that run and a number in memory are what they should be."""
    walk = Walk(subject, await subject.create(), subject.seed)
    await walk.begin()
    for _ in range(subject.cycles):
        await walk.step()


CHECKS = (random_cycles,)
