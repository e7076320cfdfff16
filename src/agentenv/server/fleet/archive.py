"""Measurements of sandboxes in the database, so that what a paused one used is known after a new start of the server.

They are written in pieces of many samples, behind everybody's back, and read once: when somebody first asks for a sandbox that an earlier
server measured.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from sqlalchemy import bindparam, delete, select

from agentenv.errors import InfrastructureError
from agentenv.monitoring.logs import logger
from agentenv.server.database import Database
from agentenv.server.database.batching import BatchWriter
from agentenv.server.database.tables import SampleRow, SandboxRow

FIELDS = 5

_log = logger(__name__)

_TOO_OLD = delete(SampleRow).where(SampleRow.sandbox == bindparam("whose"), SampleRow.until < bindparam("oldest"))


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: `time` in unix seconds, `cpu` in cores used since the one before, memory and storage in bytes."""

    time: float
    cpu: float
    memory: int
    storage: int
    processes: int


class Archive:
    """Keeps them until their sandbox ends. `open` reads which sandboxes there is something of."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = BatchWriter(database, SampleRow)
        self._earlier: set[str] = set()

    async def open(self) -> None:
        """Finds out of whom an earlier server left something."""
        async with self._database.read() as session:
            self._earlier = set(await session.scalars(select(SampleRow.sandbox).distinct()))

    def write(self, sandbox: str, samples: Sequence[Sample]) -> None:
        """Adds samples, the oldest first, soon."""
        if samples:
            values = array("d", (value for sample in samples for value in astuple(sample)))
            self._writer.add({"sandbox": sandbox, "until": samples[-1].time, "data": values.tobytes()})

    async def earlier(self, sandbox: str) -> list[Sample]:
        """What an earlier server measured of it, the oldest first; only the first call gives it, and nothing without the database."""
        if sandbox not in self._earlier:
            return []
        self._earlier.discard(sandbox)
        try:
            async with self._database.read() as session:
                pieces = await session.scalars(select(SampleRow.data).where(SampleRow.sandbox == sandbox).order_by(SampleRow.until))
                return [sample for piece in pieces for sample in _unpacked(piece)]
        except InfrastructureError as error:
            _log.warning("server.history_not_read", sandbox=sandbox, error=str(error))
            return []

    async def forget(self, oldest: Iterable[tuple[str, float]]) -> None:
        """Removes what is of sandboxes that have ended, and of each that is named what is older than that moment (unix seconds)."""
        await self._writer.flush()
        ended = select(SandboxRow.id).where(SandboxRow.ended.is_not(None))
        await self._database.execute(delete(SampleRow).where(SampleRow.sandbox.in_(ended)))
        if limits := [{"whose": sandbox, "oldest": moment} for sandbox, moment in oldest]:
            await self._database.execute(_TOO_OLD, limits)

    async def close(self) -> None:
        """Writes what is still to be written."""
        await self._writer.close()


def _unpacked(piece: bytes) -> list[Sample]:
    values = array("d")
    values.frombytes(piece)
    rows = (values[start : start + FIELDS] for start in range(0, len(values), FIELDS))
    return [Sample(moment, cpu, int(memory), int(storage), int(processes)) for moment, cpu, memory, storage, processes in rows]
