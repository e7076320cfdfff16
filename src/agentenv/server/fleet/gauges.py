"""What sandboxes use, measured again and again: the latest values and the history of each.

Measuring costs something (a sandbox's files are added up), so that it may take two hundredths of a core at most: where there are many
sandboxes, each is measured more seldom. What was measured goes to the archive now and then, and when its sandbox is paused.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from itertools import islice

from agentenv.errors import AgentEnvError
from agentenv.isolation.contract import Usage
from agentenv.server.fleet.archive import FIELDS, Archive, Sample
from agentenv.server.fleet.records import State
from agentenv.server.fleet.resident import Resident

SHARE = 0.02
"""The part of one core that measuring may take."""
PIECE = 60
"""Samples of one sandbox that go to the archive at once: what a crash may cost of its history."""


class History:
    """The last `length` samples of one sandbox, in 40 bytes each."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._values = array("d")
        self._next = 0

    def add(self, sample: Sample) -> None:
        """Appends one, in the place of the oldest when it is full."""
        row = array("d", astuple(sample))
        if len(self._values) < self._length * FIELDS:
            self._values.extend(row)
        else:
            self._values[self._next : self._next + FIELDS] = row
            self._next = (self._next + FIELDS) % len(self._values)

    def __len__(self) -> int:
        return len(self._values) // FIELDS

    def __iter__(self) -> Iterator[Sample]:
        """The samples, the oldest first."""
        size = len(self._values)
        for offset in range(0, size, FIELDS):
            yield self._at((self._next + offset) % size)

    def last(self, count: int) -> list[Sample]:
        """The last `count` samples, the oldest first."""
        return list(islice(self, max(len(self) - count, 0), None))

    @property
    def latest(self) -> Sample | None:
        """The last one that was added."""
        return self._at((self._next - FIELDS) % len(self._values)) if self._values else None

    def _at(self, start: int) -> Sample:
        moment, cpu, memory, storage, processes = self._values[start : start + FIELDS]
        return Sample(moment, cpu, int(memory), int(storage), int(processes))


@dataclass(slots=True)
class _Measured:
    history: History
    at: float | None = None
    cpu_seconds: float = 0.0
    unwritten: int = 0
    """How many of the last samples the archive has not been given."""


class Gauges:
    """Measures all that `residents` gives, from `start` to `close`; `on_sample` is told each sandbox's id and use.

    Of each, `samples` are kept, in `archive` too, which is closed along with this.
    """

    def __init__(
        self,
        residents: Callable[[], Iterable[Resident]],
        on_sample: Callable[[str, Usage], None],
        archive: Archive,
        *,
        interval: float,
        samples: int,
    ) -> None:
        self._residents = residents
        self._on_sample = on_sample
        self._archive = archive
        self._interval = interval
        self._samples = samples
        self._measured: dict[str, _Measured] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    async def start(self) -> None:
        """Begins to measure."""
        await self._archive.open()
        self._task = asyncio.create_task(self._measure_all())

    async def close(self) -> None:
        """Measures no more, and archives what there is of those that stay; idempotent."""
        self._closed.set()
        if self._task is not None:
            await asyncio.wait({self._task})
        for resident in self._residents():
            self._write(resident.id)
        await self._archive.close()

    async def history(self, resident: Resident) -> list[Sample]:
        """What was measured of a sandbox, the oldest first; at least one measurement where it runs."""
        known = await self._known(resident)
        if not len(known.history):
            await self.now(resident)
        return list(known.history)

    async def tidy(self) -> None:
        """Removes from the archive what is not to be kept any more."""
        full = {name: known.history for name, known in self._measured.items() if len(known.history) == self._samples}
        await self._archive.forget((name, history.last(self._samples)[0].time) for name, history in full.items())

    def latest(self, sandbox: str) -> Sample | None:
        """The last measurement of a sandbox, None where it was not measured yet."""
        known = self._measured.get(sandbox)
        return known.history.latest if known else None

    async def now(self, resident: Resident) -> Sample | None:
        """A measurement of this moment, kept like the others; None when there is no machine to measure."""
        handle = resident.handle
        if handle is None or resident.state is not State.RUNNING:
            return None
        try:
            usage = await handle.metrics()
        except AgentEnvError:
            return None  # It ended just now; who watches its end reports that.
        moment, spent = time.monotonic(), usage.cpu_seconds or 0.0
        known = await self._known(resident)
        # The processor time of a new machine begins at 0 again.
        cores = max(spent - known.cpu_seconds, 0.0) / (moment - known.at) if known.at is not None and moment > known.at else 0.0
        known.at, known.cpu_seconds = moment, spent
        sample = Sample(time.time(), cores, usage.memory or 0, usage.storage or 0, usage.processes or 0)
        known.history.add(sample)
        known.unwritten += 1
        self._on_sample(resident.id, usage)
        return sample

    async def _measure_all(self) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            there = {resident.id: resident for resident in self._residents()}
            self._measured = {name: known for name, known in self._measured.items() if name in there}
            for resident in there.values():
                if self._closed.is_set():
                    return
                await self.now(resident)
                known = self._measured.get(resident.id)
                if known is not None and known.unwritten >= (1 if resident.state is State.PAUSED else PIECE):
                    self._write(resident.id)
            spent = time.monotonic() - began
            await self._wait(max(self._interval - spent, spent / SHARE - spent))

    async def _known(self, resident: Resident) -> _Measured:
        """Begins with what an earlier server measured."""
        known = self._measured.setdefault(resident.id, _Measured(History(self._samples)))
        if earlier := await self._archive.earlier(resident.id):
            since, known.history = known.history, History(self._samples)
            for sample in (*earlier, *since):
                known.history.add(sample)
        return known

    def _write(self, sandbox: str) -> None:
        known = self._measured.get(sandbox)
        if known is not None:
            self._archive.write(sandbox, known.history.last(known.unwritten))
            known.unwritten = 0

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
