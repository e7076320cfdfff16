"""What sandboxes use, measured again and again: the latest values and the history of each.

Measuring costs something (a sandbox's files are added up), so that it may take two hundredths of a core at most: where there are many
sandboxes, each is measured more seldom.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from agentenv.errors import AgentEnvError
from agentenv.isolation.contract import Usage
from agentenv.server.fleet.records import State
from agentenv.server.fleet.resident import Resident

SHARE = 0.02
"""The part of one core that measuring may take."""
_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: `time` in unix seconds, `cpu` in cores used since the one before, memory and storage in bytes."""

    time: float
    cpu: float
    memory: int
    storage: int
    processes: int


class History:
    """The last `length` samples of one sandbox, in 40 bytes each."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._values = array("d")
        self._next = 0

    def add(self, sample: Sample) -> None:
        """Appends one, in the place of the oldest when it is full."""
        row = array("d", (sample.time, sample.cpu, sample.memory, sample.storage, sample.processes))
        if len(self._values) < self._length * _FIELDS:
            self._values.extend(row)
        else:
            self._values[self._next : self._next + _FIELDS] = row
            self._next = (self._next + _FIELDS) % len(self._values)

    def __iter__(self) -> Iterator[Sample]:
        """The samples, the oldest first."""
        size = len(self._values)
        for offset in range(0, size, _FIELDS):
            yield self._at((self._next + offset) % size)

    @property
    def latest(self) -> Sample | None:
        """The last one that was added."""
        return self._at((self._next - _FIELDS) % len(self._values)) if self._values else None

    def _at(self, start: int) -> Sample:
        moment, cpu, memory, storage, processes = self._values[start : start + _FIELDS]
        return Sample(moment, cpu, int(memory), int(storage), int(processes))


@dataclass(slots=True)
class _Measured:
    history: History
    at: float
    cpu_seconds: float


class Gauges:
    """Measures all that `residents` gives, from `start` to `close`; `on_sample` is told each sandbox's id and use."""

    def __init__(
        self,
        residents: Callable[[], Iterable[Resident]],
        on_sample: Callable[[str, Usage], None],
        *,
        interval: float,
        samples: int,
    ) -> None:
        self._residents = residents
        self._on_sample = on_sample
        self._interval = interval
        self._samples = samples
        self._measured: dict[str, _Measured] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    def start(self) -> None:
        """Begins to measure."""
        self._task = asyncio.create_task(self._measure_all())

    async def close(self) -> None:
        """Measures no more; idempotent."""
        self._closed.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    def history(self, sandbox: str) -> list[Sample]:
        """What was measured of a sandbox, the oldest first."""
        known = self._measured.get(sandbox)
        return list(known.history) if known else []

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
        known = self._measured.setdefault(resident.id, _Measured(History(self._samples), moment, spent))
        # The processor time of a new machine begins at 0 again.
        cores = max(spent - known.cpu_seconds, 0.0) / (moment - known.at) if moment > known.at else 0.0
        known.at, known.cpu_seconds = moment, spent
        sample = Sample(time.time(), cores, usage.memory or 0, usage.storage or 0, usage.processes or 0)
        known.history.add(sample)
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
            spent = time.monotonic() - began
            await self._wait(max(self._interval - spent, spent / SHARE - spent))

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
