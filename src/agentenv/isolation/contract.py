"""The contract between AgentENV and a wall: what a backend is asked, what it hands back, and what it may say it cannot do.

A *backend* decides what stands around the agent (namespaces, gVisor's kernel, a virtual machine). It gets a complete `MachineSpec`, in
which images and snapshots are already plain directories, and returns a `Machine`. Everything above asks for a capability, never for a
backend's name.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from agentenv.errors import Stage


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do on this machine. `lost` says in plain words what is weaker than it could be, and why."""

    memory_snapshot: bool = False
    filesystem_snapshot: bool = False
    pause: bool = False
    live_resize: bool = False
    memory_limit: bool = False
    cpu_limit: bool = False
    process_limit: bool = False
    disk_limit: bool = False  # traffic, not space
    network: bool = False
    users: bool = False
    rootless: bool = False
    hardware_isolation: bool = False
    disk_image: bool = False  # its upper is one disk file `upper/disk.img` instead of a directory tree per overlay
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a backend can be used here; if not, why not and how to mend it."""

    backend: str
    usable: bool
    version: str | None
    reason: str | None = None
    remedy: str | None = None
    capabilities: Capabilities = field(default_factory=Capabilities)


@dataclass(frozen=True, slots=True)
class Resources:
    """Limits of one sandbox: `cpu` in cores, `memory` and `storage` in bytes, `pids` counts processes and threads. None is unlimited.

    Of the disk: `disk_read` and `disk_write` in bytes a second, `disk_iops` in reads a second and as many writes.
    """

    cpu: float | None = None
    memory: int | None = None
    storage: int | None = None
    pids: int | None = 4096
    disk_read: int | None = None
    disk_write: int | None = None
    disk_iops: int | None = None

    @property
    def limits_disks(self) -> bool:
        """Whether any traffic of disks is limited."""
        return (self.disk_read, self.disk_write, self.disk_iops) != (None, None, None)

    def changed_by(self, wish: Resources) -> Resources:
        """These limits, but for those that `wish` sets."""
        return replace(self, **{field.name: value for field in fields(wish) if (value := getattr(wish, field.name)) is not None})


@dataclass(frozen=True, slots=True)
class Network:
    """What a sandbox may reach. Without `enabled` it has a loopback of its own and nothing else.

    With it: the outside world, never the host, link-local or private ranges. `slot` is what the node's pool prepared for it.
    """

    enabled: bool = False
    netns: Path | None = None
    address: str | None = None
    nameservers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tree:
    """One overlay of the sandbox's file system.

    `target` is its mount point inside ("/", "/usr", …), `name` the sub-directory of the writable upper and of each snapshot layer that
    belongs to it, `lowers` read-only directories of the host, the topmost first.
    """

    target: str
    name: str
    lowers: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class RootFilesystem:
    """What the sandbox sees as its files before it writes any: overlays ("/" first) and the defaults of its image."""

    trees: tuple[Tree, ...]
    image: str
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    cwd: str = "/root"

    def with_layers(self, layers: tuple[Path, ...]) -> RootFilesystem:
        """The same root with snapshot `layers` (topmost first) on top of each tree that they touch."""
        trees = tuple(
            Tree(tree.target, tree.name, tuple(layer / tree.name for layer in layers if (layer / tree.name).is_dir()) + tree.lowers)
            for tree in self.trees
        )
        return RootFilesystem(trees, self.image, self.env, self.user, self.cwd)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds; `startup` covers everything from the request to the agent's first answer."""

    startup: float = 60.0
    shutdown: float = 5.0


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """Everything a backend needs to start one machine.

    `directory` belongs to this machine alone and exists: it holds `upper/`, `work/`, the agent's socket.
    """

    id: str
    directory: Path
    root: RootFilesystem
    hostname: str
    resources: Resources = field(default_factory=Resources)
    network: Network = field(default_factory=Network)
    env: Mapping[str, str] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a machine uses now: bytes, seconds of processor time, shares of time stalled (PSI avg10, 0-100).

    None where the kernel does not tell. `storage_free` is told by a file system of the machine's own, which is full before `storage` is as
    large as its limit: some of the disk it needs itself.
    """

    memory: int | None = None
    memory_peak: int | None = None
    memory_limit: int | None = None
    cpu_seconds: float | None = None
    throttled_seconds: float | None = None
    processes: int | None = None
    storage: int | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    io_pressure: float | None = None
    storage_free: int | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """How a machine ended: by its own exit code, a signal, and whatever the kernel recorded about a limit."""

    exit_code: int | None
    signal: int | None
    reason: str
    evidence: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OomKill:
    """The kernel's record of one out-of-memory kill inside a machine (bytes)."""

    limit: int
    peak: int
    process: str | None


@runtime_checkable
class Machine(Protocol):
    """One running machine. Every method but `kill` raises `SandboxDied` once it is gone; `kill` is idempotent and works in every state."""

    @property
    def id(self) -> str: ...

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of its start, in order."""
        ...

    def dial(self) -> socket.socket:
        """A fresh, connected, blocking byte stream to the agent (docs/agent-protocol.md)."""
        ...

    @property
    def passes_descriptors(self) -> bool:
        """Whether the stream of `dial` is a unix socket of this kernel, so that the agent can hand out descriptors."""
        ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def resize(self, resources: Resources) -> None:
        """Changes the limits of the live machine; None in a field leaves that limit as it is."""
        ...

    async def usage(self) -> Usage: ...

    async def oom_kills(self) -> tuple[OomKill, ...]:
        """Out-of-memory kills since the machine started, the oldest first."""
        ...

    async def process_limit_hits(self) -> int:
        """How often a fork was refused because of `resources.pids`."""
        ...

    async def kill(self) -> Exit:
        """Ends the machine and frees all it held; returns how it had ended if it already had."""
        ...

    async def wait(self) -> Exit:
        """Returns when the machine has ended, by whatever cause."""
        ...


@runtime_checkable
class Backend(Protocol):
    """One kind of wall, opened by one owner process."""

    @property
    def name(self) -> str: ...

    def probe(self) -> Probe: ...

    async def start(self, spec: MachineSpec) -> Machine:
        """Starts a machine; on any failure nothing of it is left. Raises `StartupTimeout`, `BackendUnavailable`, `InfrastructureError`."""
        ...

    async def close(self) -> None:
        """Ends every machine it started and frees what it holds itself; idempotent."""
        ...


@runtime_checkable
class Checkpointing(Protocol):
    """A machine with the capability `memory_snapshot`."""

    async def checkpoint(self, directory: Path, parent: Path | None = None) -> None:
        """Writes memory and device state into the empty `directory` while the machine is paused (the caller pauses and resumes).

        `parent` is what it was written down to the last time, or started from: the result may be made of that and of what changed since,
        but needs it no more. Without `parent` all is written. The directory is moved afterwards. A machine that cannot be written down
        though its backend can says why in a property `checkpoint_obstacle: str | None`. Whatever fails, `directory` is empty again.
        """
        ...


@runtime_checkable
class Restoring(Protocol):
    """A backend with the capability `memory_snapshot`."""

    async def restore(self, spec: MachineSpec, checkpoint: Path) -> Machine:
        """Starts a machine from a checkpoint, running; memory is mapped privately so that clones share clean pages.

        `spec.directory` already holds a clone of the upper as it was at the checkpoint.
        """
        ...


@runtime_checkable
class Attachable(Protocol):
    """A machine that, started without a network, can be given one while it runs."""

    @property
    def pid(self) -> int:
        """The host's number of a process in its network namespace."""
        ...

    def network_namespace(self) -> int:
        """A descriptor of the network namespace that it lives in, for the caller to close. Raises `SandboxDied`."""
        ...


@runtime_checkable
class Blanking(Backend, Restoring, Protocol):
    """A backend whose machines come up alike, so that one that was written down before it was anybody's stands for the next: a blank."""

    async def blank_key(self, spec: MachineSpec) -> str:
        """Letters and digits that are the same for two specs whose machines come up alike, until they are told whose they are.

        That is: but for `id`, `directory`, `hostname`, `env` and the defaults of the image. Raises what `start` raises.
        """
        ...


BackendFactory = Callable[[Path], Awaitable[Backend]]
"""What an entry point of the group `agentenv.backends` names: given the owner's directory, opens the backend."""
