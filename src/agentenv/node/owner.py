"""One process that owns sandboxes: its directory, its lock, its journal, and how others see whether it still lives."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agentenv.errors import InfrastructureError
from agentenv.images.files import spread_children
from agentenv.images.held import Held, claim, wait_for
from agentenv.isolation.namespace.makers import process_namespace, start_ticks
from agentenv.node.home import Home
from agentenv.node.journal import Journal, read_journal, understood
from agentenv.node.records import SandboxRecord

FACTS = "owner.json"
JOURNAL = "journal"


class OwnerFacts(msgspec.Struct, frozen=True):
    """Who an owner is. `started` is its start time in clock ticks since boot, `namespace` the process namespace that `pid` belongs to."""

    pid: int
    started: int
    namespace: int
    command: str
    created: float
    keeper: bool = False


@dataclass(frozen=True, slots=True)
class Owner:
    """This process as an owner. `directory` is removed when it is closed."""

    id: str
    directory: Path
    journal: Journal
    lock: Held

    @classmethod
    def register(cls, home: Home, *, keeper: bool = False) -> Owner:
        """Makes this process an owner in `home`; one process may be several."""
        identifier = f"o{secrets.token_hex(5)}"
        directory = home.owners / identifier
        facts = OwnerFacts(os.getpid(), start_ticks(os.getpid()) or 0, process_namespace(), Path(sys.argv[0]).name, time.time(), keeper)
        try:
            # Under the lock of all owners, since one that is not locked yet looks dead to a process that cleans up.
            with home.lock():
                directory.mkdir(mode=0o700)
                lock = wait_for(directory)
                (directory / FACTS).write_bytes(msgspec.json.encode(facts))
                (directory / "trash").mkdir()
                (directory / "staging").mkdir()
                (directory / "spare").mkdir()
                spread_children(directory)
                spread_children(directory / "spare")
        except OSError as error:
            raise InfrastructureError(
                f"{directory} cannot be made: {error.strerror}.", remedy="Check the disk of AGENTENV_HOME."
            ) from error
        return cls(identifier, directory, Journal(directory / JOURNAL), lock)

    def machine_directory(self, machine_id: str) -> Path:
        return self.directory / machine_id

    def discard(self, path: Path) -> Path | None:
        """Moves a directory out of sight at once; what is returned is then to be removed at leisure. None when it does not exist."""
        resting = self.directory / "trash" / f"{path.name}.{secrets.token_hex(4)}"
        try:
            path.rename(resting)
        except FileNotFoundError:
            return None
        return resting

    def staging(self) -> Path:
        """A fresh directory for something that will be moved elsewhere when it is complete, and that vanishes with this owner if not."""
        path = self.directory / "staging" / secrets.token_hex(6)
        path.mkdir()
        return path

    def close(self) -> None:
        """Ends the ownership; every sandbox must have ended before. Idempotent."""
        self.journal.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.lock.release()


def dead_owners(home: Home) -> list[Path]:
    """The directories of owners that have died. Only under `home.lock()` it is sure that none of them is just being made."""
    return [path for path in home.owners.iterdir() if _is_dead(path)]


def _is_dead(directory: Path) -> bool:
    lock = claim(directory)
    if lock is not None:
        lock.release()
        return True
    # A process that the owner forked may have its lock, and outlive it.
    facts = read_facts(directory)
    return facts is not None and not is_alive(facts)


def live_records(home: Home) -> list[SandboxRecord]:
    """Every sandbox of every live owner in `home`, the oldest first; a start that has not finished is not listed."""
    found = []
    for path in home.owners.iterdir():
        facts = read_facts(path)
        if facts is None or not is_alive(facts):
            continue
        for name, known in read_journal(path / JOURNAL).items():
            if known.get("state") not in (None, "creating"):
                told = {"id": name, "owner": path.name, "owner_pid": facts.pid, **known}
                record = understood(told, SandboxRecord)
                if not _has_ended(record, facts):
                    found.append(record)
    return sorted(found, key=lambda record: (record.created, record.id))


def _has_ended(record: SandboxRecord, owner: OwnerFacts) -> bool:
    """Whether the sandbox is gone though its owner has not written so yet."""
    return record.init is not None and owner.namespace == process_namespace() and start_ticks(record.init[0]) != record.init[1]


def read_facts(directory: Path) -> OwnerFacts | None:
    """Who owns `directory`; None for one that is just being made or removed."""
    try:
        return msgspec.json.decode((directory / FACTS).read_bytes(), type=OwnerFacts)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def is_alive(facts: OwnerFacts) -> bool:
    """Whether that process still runs; one in another process namespace (a container beside us) is taken to."""
    return facts.namespace != process_namespace() or start_ticks(facts.pid) == facts.started
