"""The programs `firecracker` and `jailer`: which version they are, and what differs between versions."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import BackendUnavailable
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.artefacts.programs import dotted_version, version_text

_ONE_SLOT = 3 << 10
"""MiB of memory below the gap for devices of x86; more is in two pieces."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of Firecracker. `snapshot_format` is that of its state files."""

    version: tuple[int, ...]
    snapshot_format: tuple[int, ...]

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def tracks_by_new_name(self) -> bool:
        """Whether a load is told `track_dirty_pages`; before 1.13 it was `enable_diff_snapshots`."""
        return self.version >= (1, 13)

    @property
    def reports_free_pages(self) -> bool:
        """Whether the balloon gives back what the guest's kernel does not use, unasked."""
        return self.version >= (1, 14)

    def writes_whole_differences(self, memory_mib: int) -> bool:
        """Whether a snapshot of type `Diff` can be relied on: before 1.15 it is corrupt for memory in more than one piece."""
        return self.version >= (1, 15) or memory_mib <= _ONE_SLOT

    def reads(self, snapshot_format: tuple[int, ...]) -> bool:
        """Whether a state file of that format can be loaded (Firecracker, docs/snapshotting/versioning.md)."""
        return snapshot_format[0] == self.snapshot_format[0] and snapshot_format <= self.snapshot_format

    @property
    def lost(self) -> tuple[str, ...]:
        """What of this version works less well than that of others."""
        if (1, 16) <= self.version < (1, 16, 2):
            return (
                "pause: with this version no new connection is answered after a pause without a snapshot; 1.15 has not got this fault.",
            )
        return ()


@dataclass(frozen=True, slots=True)
class Programs:
    """`jailer` is None where machines are not jailed."""

    firecracker: Path
    jailer: Path | None
    release: Release

    @classmethod
    def find(cls, store: ArtefactStore, *, jailed: bool) -> Programs:
        """Those of this machine. Raises `BackendUnavailable` where one is missing or cannot be used. Fetches nothing."""
        firecracker = store.require("firecracker")
        release = _release(firecracker.path, firecracker.path.stat().st_mtime_ns)
        if not jailed:
            return cls(firecracker.path, None, release)
        jailer = store.require("jailer")
        name = firecracker.path.resolve().name
        if release.version < (1, 13) and "firecracker" not in name:
            raise BackendUnavailable(
                f"the jailer starts no program called {name!r}.", remedy="Give Firecracker's program a name with `firecracker` in it."
            )
        return cls(firecracker.path.resolve(), jailer.path, release)


@functools.lru_cache(maxsize=8)
def _release(program: Path, _changed: int) -> Release:
    version = dotted_version(version_text(program))
    told = version_text(program, "--snapshot-version")
    found = re.search(r"^v?(\d+)\.(\d+)\.(\d+)", told, re.MULTILINE)
    if version is None or found is None:
        raise BackendUnavailable(f"{program} does not tell the format of its snapshots; it printed {told.strip()[:100]!r}.")
    return Release(version, tuple(int(part) for part in found.groups()))
