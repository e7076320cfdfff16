"""A place in which machines of one backend are started without a node around them."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.errors import BackendUnavailable
from agentenv.guest import Command, Connection
from agentenv.guest.processes import start as start_process
from agentenv.isolation.conformance.check import CheckFailed
from agentenv.isolation.conformance.image import make_small_root
from agentenv.isolation.conformance.traces import wait_until_gone
from agentenv.isolation.contract import Backend, Capabilities, Machine, MachineSpec, Probe, Resources, RootFilesystem, Timeouts
from agentenv.isolation.registry import open_backend

PATIENT = Timeouts(startup=60.0, shutdown=20.0)

TOO_SHORT = 0.0005
"""Seconds in which nothing can start that has to mount or load anything."""


@dataclass
class Yard:
    """One owner's directory with the backend open in it, and the small image that its machines run."""

    backend: Backend
    probe: Probe
    directory: Path
    image: RootFilesystem
    _machines: list[Machine] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def capabilities(self) -> Capabilities:
        """What the backend claims."""
        return self.probe.capabilities

    def spec(self, *, resources: Resources | None = None, timeouts: Timeouts = PATIENT, image: RootFilesystem | None = None) -> MachineSpec:
        """What to start, with a directory of its own."""
        name = f"m{next(self._numbers)}"
        directory = self.directory / name
        directory.mkdir(mode=0o700)
        root = image or self.image
        return MachineSpec(
            id=name,
            directory=directory,
            root=root,
            hostname=f"box-{name}",
            resources=resources or Resources(),
            env=root.env,
            timeouts=timeouts,
        )

    async def start(self, spec: MachineSpec | None = None) -> Machine:
        """A machine, which `tidy` ends."""
        return self.keep(await self.backend.start(spec or self.spec()))

    def keep(self, machine: Machine) -> Machine:
        """Has `tidy` end the machine, too."""
        self._machines.append(machine)
        return machine

    def directory_of(self, machine: Machine) -> Path:
        """The directory that its spec named."""
        return self.directory / machine.id

    async def tidy(self) -> None:
        """Ends all machines."""
        machines, self._machines = self._machines, []
        await asyncio.gather(*(machine.kill() for machine in machines))

    async def expect_nothing_left(self, directory: Path, what: str) -> None:
        """Raises `CheckFailed` when something still names the directory of a machine that has ended."""
        if left := await wait_until_gone(directory):
            raise CheckFailed(f"{what} leaves {left}.")


@asynccontextmanager
async def open_yard(name: str, scratch: Path | None = None) -> AsyncIterator[Yard]:
    """The backend `name` in a temporary directory (below `scratch`). Raises `BackendUnavailable` with the reason, `NotFound`."""
    with tempfile.TemporaryDirectory(prefix="agentenv-conformance-", dir=scratch) as place:
        directory = Path(place) / f"o{secrets.token_hex(5)}"
        directory.mkdir(mode=0o700)
        image = await asyncio.to_thread(make_small_root, Path(place) / "image")
        backend = await open_backend(name, directory)
        try:
            probe = await asyncio.to_thread(backend.probe)
            if not probe.usable:
                raise BackendUnavailable(f"{probe.backend} cannot be used here: {probe.reason}", remedy=probe.remedy)
            yield Yard(backend, probe, directory, image)
        finally:
            await backend.close()


async def shell(machine: Machine, line: str) -> str:
    """Runs a line by the machine's /bin/sh; returns all that it printed."""
    connection = Connection.open(machine.dial())
    try:
        process = start_process(connection, Command(argv=("/bin/sh", "-c", line), timeout=60.0))
        await process.ended()
        return (process.stdout + process.stderr).decode(errors="replace")
    finally:
        connection.close()


COUNTER = "n=0; while :; do n=$((n + 1)); echo $n > /tmp/count; done"
"""Counts in the memory of a shell and shows in /tmp/count how far it has come."""


async def count(machine: Machine) -> int:
    """How far the machine's counter has come; 0 before it has begun."""
    with suppress(ValueError):
        return int(await shell(machine, "read n < /tmp/count && echo $n"))
    return 0


async def counting(machine: Machine) -> Connection:
    """Starts a counter in the machine and returns when it counts; it goes on when the connection is closed."""
    connection = Connection.open(machine.dial())
    process = start_process(connection, Command(argv=("/bin/sh", "-c", COUNTER), keep=True))
    await process.started()
    await reached(machine, 1)
    return connection


async def reached(machine: Machine, number: int) -> int:
    """Waits until the counter has come so far, and returns how far it is then."""
    while (now := await count(machine)) < number:
        continue
    return now
