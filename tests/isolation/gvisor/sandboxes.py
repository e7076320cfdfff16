"""What the tests of this room share: machines to ask for, children of a checkpoint, and what must be gone in the end."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.isolation.sandboxes import QUICK

from agentenv.isolation.contract import MachineSpec, Network, Resources, RootFilesystem, Timeouts
from agentenv.isolation.gvisor.backend import GvisorBackend
from agentenv.isolation.gvisor.machine import GvisorMachine
from agentenv.isolation.namespace.cgroups import CgroupTree


@dataclass
class GvisorYard:
    """One owner's directory with a backend open in it."""

    backend: GvisorBackend
    directory: Path
    image: RootFilesystem
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def spec(
        self,
        *,
        resources: Resources | None = None,
        network: Network | None = None,
        timeouts: Timeouts = QUICK,
        image: RootFilesystem | None = None,
        env: dict[str, str] | None = None,
    ) -> MachineSpec:
        """What to start, with a fresh directory."""
        name = f"m{next(self._numbers)}"
        directory = self.directory / name
        directory.mkdir(mode=0o700)
        return MachineSpec(
            id=name,
            directory=directory,
            root=image or self.image,
            hostname=f"box-{name}",
            resources=resources or Resources(),
            network=network or Network(),
            env=env or {},
            timeouts=timeouts,
        )

    async def checkpoint(self, parent: GvisorMachine) -> Path:
        """A checkpoint of a paused machine, with its files beside it in `upper`."""
        directory = self.directory / f"checkpoint{next(self._numbers)}"
        (directory / "memory").mkdir(parents=True)
        await parent.checkpoint(directory / "memory")
        await asyncio.to_thread(shutil.copytree, parent.directory / "upper", directory / "upper", symlinks=True)
        return directory

    async def child(self, checkpoint: Path, **wishes: object) -> GvisorMachine:
        """A machine that goes on from a checkpoint."""
        spec = self.spec(**wishes)  # type: ignore[arg-type]
        await asyncio.to_thread(shutil.copytree, checkpoint / "upper", spec.directory / "upper", symlinks=True)
        return await self.backend.restore(spec, checkpoint / "memory")

    def leftovers(self) -> dict[str, object]:
        """Whatever of a sandbox is still there; empty values when nothing is."""
        return {
            "cgroups": [name for name in CgroupTree.discover().names() if self.directory.name in name],
            "processes": processes_below(self.directory),
            "mounts": mounts_below(self.directory),
        }


NOTHING: dict[str, object] = {"cgroups": [], "processes": [], "mounts": []}


def processes_below(directory: Path) -> list[str]:
    """Processes whose command names something in `directory`: all of gVisor's do."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if words[0].startswith(b"runsc-") and any(str(directory).encode() in word for word in words):
            found.append(file.parent.name)
    return found


def mounts_below(directory: Path) -> list[str]:
    """Mounts at places in `directory`, in any mount namespace."""
    found = []
    for file in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            found += [line for line in file.read_text().splitlines() if f" {directory}/" in line]
        except OSError:
            continue
    return found
