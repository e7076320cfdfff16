"""What a start finds of an earlier server that may have been killed at any moment, and what becomes of it.

Machines die with the process that owns them, so that nothing runs any more. What was paused is on the disk. A sandbox whose pause was under
way is paused if its files were kept in time. Of those that ran, the node has salvaged the files where the policy of the server that died
said so (`agentenv.node.salvage`): they are paused, too. The others are gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from agentenv.monitoring.logs import logger
from agentenv.node import Node
from agentenv.node.snapshots import Snapshot
from agentenv.server.catalogue import Catalogue
from agentenv.server.database.tables import SandboxRow
from agentenv.server.fleet.births import MARK
from agentenv.server.fleet.changes import PROCESSES
from agentenv.server.fleet.ledger import Ledger
from agentenv.server.fleet.logbook import Logbook
from agentenv.server.fleet.records import State
from agentenv.server.fleet.register import Register, restored
from agentenv.server.fleet.survival import SALVAGED

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
    free = [snapshot for snapshot in there.values() if MARK in snapshot.metadata and snapshot.id not in taken]
    # Besides those, only a pause takes a snapshot that nobody has written down yet; of several, the last is of the pause.
    salvaged = _by_sandbox(snapshot for snapshot in free if SALVAGED in snapshot.metadata)
    captured = _by_sandbox(snapshot for snapshot in free if SALVAGED not in snapshot.metadata)
    for row in rows:
        snapshot = _kept(row, captured, salvaged)
        resident = restored(row, domain)
        if snapshot in there:
            resident.snapshot = snapshot
            resident.paused = resident.paused or time.time()
            resident.memory_kept = there[snapshot].memory
            lost = PROCESSES if resident.pause_mode != "filesystem" and not resident.memory_kept else None
            resident.pause_mode = "full" if resident.memory_kept else "filesystem"
            register.adopt(resident)
            await register.note(resident, State.PAUSED)
            ledger.settle(resident)
            logbook.write(row.id, "taken over by a new server", was=row.state, state="paused", lost=lost)
        else:
            reason = REASONS[State(row.state)]
            await register.end(resident, reason)
            logbook.write(row.id, "ended", level="warn", reason=reason)
    if rows:
        _log.info("server.recovered", found=len(rows), paused=len(register))


def _by_sandbox(snapshots: Iterable[Snapshot]) -> Mapping[str, str]:
    return {snapshot.metadata[MARK]: snapshot.id for snapshot in snapshots}


def _kept(row: SandboxRow, captured: Mapping[str, str], salvaged: Mapping[str, str]) -> str | None:
    """The snapshot that holds the files of a sandbox that was paused, or nearly, or whose files were salvaged."""
    if row.state in (State.PAUSED, State.RESUMING):
        return row.snapshot
    return (captured.get(row.id) if row.state == State.PAUSING else None) or salvaged.get(row.id)
