"""Real sandboxes for the tests of this room: a small image made of the machine's /usr, and a shell in it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.guest import Command, Connection
from agentenv.guest.processes import start as start_process
from agentenv.isolation.contract import Machine, MachineSpec, Network, Resources, RootFilesystem, Timeouts, Tree
from agentenv.isolation.namespace.backend import NamespaceBackend
from agentenv.isolation.namespace.cgroups import CgroupTree

MIB = 1 << 20
QUICK = Timeouts(startup=30.0, shutdown=10.0)


def skeleton(directory: Path) -> RootFilesystem:
    """A root of a few directories, with the machine's /usr under an overlay of its own."""
    base = directory / "image"
    for name in ("proc", "sys", "dev", "tmp", "run", "usr", "etc", "root"):
        (base / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (base / name).symlink_to(f"usr/{name}")
    (base / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n")
    (base / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    trees = (Tree("/", "root", (base,)), Tree("/usr", "usr", (Path("/usr"),)))
    return RootFilesystem(trees, "test", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


@dataclass
class Yard:
    """One owner's directory with a backend open in it."""

    backend: NamespaceBackend
    directory: Path
    image: RootFilesystem
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def spec(
        self,
        *,
        resources: Resources | None = None,
        network: Network | None = None,
        timeouts: Timeouts = QUICK,
        env: dict[str, str] | None = None,
        image: RootFilesystem | None = None,
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

    def leftovers(self) -> dict[str, object]:
        """Whatever of a sandbox is still there; empty values when nothing is. Cgroups that wait for the next one do not count."""
        waiting = self.backend._groups.ready
        launcher = self.backend._launcher._process.pid
        return {
            "processes": Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split(),
            "cgroups": [name for name in CgroupTree.discover().names() if self.directory.name in name and name not in waiting],
        }


async def shell(machine: Machine, line: str, *, user: str | None = None) -> str:
    """Runs a line by the sandbox's /bin/sh; returns all it printed on both outputs."""
    connection = Connection.open(machine.dial())
    try:
        process = start_process(connection, Command(argv=("/bin/sh", "-c", line), user=user, timeout=60.0))
        await process.ended()
        return (process.stdout + process.stderr).decode(errors="replace")
    finally:
        connection.close()


def open_descriptors() -> int:
    """How many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
