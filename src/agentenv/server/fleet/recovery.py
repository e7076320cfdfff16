"""What a start finds of an earlier server that may have been killed at any moment, and what becomes of it.

Machines die with the process that owns them, so that no running sandbox outlives a crash. What was paused is on the disk. A sandbox whose
pause was under way is paused if its files were kept in time, and gone if not.
"""

from __future__ import annotations

from agentenv.monitoring.logs import logger
from agentenv.node import Node
from agentenv.server.catalogue import Catalogue
from agentenv.server.database.tables import SandboxRow
from agentenv.server.fleet.births import MARK
from agentenv.server.fleet.changes import PROCESSES
from agentenv.server.fleet.ledger import Ledger
from agentenv.server.fleet.logbook import Logbook
from agentenv.server.fleet.records import State
from agentenv.server.fleet.register import Register, restored

REASONS = {
    State.RUNNING: "the server ended, and its machines with it",
    State.PAUSING: "the server ended before it was paused",
    State.PAUSED: "its files are not there any more",
    State.RESUMING: "its files are not there any more",
}

_log = logger(__name__)


async def recover(node: Node, register: Register, ledger: Ledger, catalogue: Catalogue, logbook: Logbook, domain: str) -> None:
    """Takes over what is paused and ends the rest, with the reason in the log of each."""
    there = {snapshot.id: snapshot for snapshot in await node.snapshots()}
    rows = await register.unfinished()
    taken = catalogue.snapshots_needed() | {row.snapshot for row in rows if row.snapshot}
    # Only a pause takes a snapshot that nobody has written down yet; of several, the last is of the pause.
    free = [snapshot for snapshot in there.values() if MARK in snapshot.metadata and snapshot.id not in taken]
    unclaimed = {snapshot.metadata[MARK]: snapshot.id for snapshot in free}
    for row in rows:
        snapshot = _kept(row, unclaimed)
        resident = restored(row, domain)
        if snapshot in there:
            resident.snapshot = snapshot
            resident.memory_kept = there[snapshot].memory
            lost = PROCESSES if resident.pause_mode != "filesystem" and not resident.memory_kept else None
            resident.pause_mode = "full" if resident.memory_kept else "filesystem"
            register.adopt(resident)
            await register.note(resident, State.PAUSED)
            ledger.settle(resident)
            logbook.write(row.id, "taken over by a new server", state="paused", lost=lost)
        else:
            reason = REASONS[State(row.state)]
            await register.end(resident, reason)
            logbook.write(row.id, "ended", level="warn", reason=reason)
    if rows:
        _log.info("server.recovered", found=len(rows), paused=len(register))


def _kept(row: SandboxRow, unclaimed: dict[str, str]) -> str | None:
    """The snapshot that holds the files of a sandbox that was paused, or nearly."""
    if row.state in (State.PAUSED, State.RESUMING):
        return row.snapshot
    return unclaimed.get(row.id) if row.state == State.PAUSING else None
