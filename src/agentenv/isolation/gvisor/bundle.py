"""What runsc is told of a machine: the OCI bundle (https://github.com/opencontainers/runtime-spec, config.md), written by us.

In the machine's directory lie: `bundle/config.json`; `bundle/root` and `bundle/trees/NAME`, where its overlays are mounted for its own eyes
only; `bundle/agent`, the program; `bundle/meminfo`, by which gVisor is told how much memory there is; `bundle/nothing`, shown where runsc
shall see nothing; `runsc/`, what runsc keeps of it.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentenv.guest.native import binary
from agentenv.isolation.contract import MachineSpec, Tree
from agentenv.isolation.namespace import plan

AGENT = "/run/agentenv/agent"
_RUN_BYTES = 64 << 20
_SMALLEST_TMPFS = 4 << 20

_LIMITS = {"RLIMIT_NOFILE": (1 << 16, 1 << 20), "RLIMIT_CORE": (0, 0)}
_POWERS = (
    ("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    ("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE"),
)
_CAPABILITIES = [f"CAP_{name}" for row in _POWERS for name in row]
"""Of gVisor's kernel, not of the host's: root may do in a sandbox what it may do on a machine of its own."""

_OF_THE_AGENT = "CAP_NET_ADMIN"
"""What makes the network's interface; programs that the agent starts cannot have it, since it is not among the bounding ones."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The paths of one machine's bundle."""

    machine: Path

    @property
    def directory(self) -> Path:
        return self.machine / "bundle"

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def meminfo(self) -> Path:
        return self.directory / "meminfo"

    @property
    def agent(self) -> Path:
        return self.directory / "agent"

    @property
    def nothing(self) -> Path:
        return self.directory / "nothing"

    @property
    def state(self) -> Path:
        return self.machine / "runsc"

    @property
    def log(self) -> Path:
        return self.machine / "runsc.log"

    def mount_point(self, tree: Tree) -> Path:
        """Where the overlay of a tree is mounted; the bundle has it shown at the tree's target."""
        return self.root if tree.target == "/" else self.directory / "trees" / tree.name

    def upper(self, tree: Tree) -> Path:
        return self.machine / "upper" / tree.name

    def work(self, tree: Tree) -> Path:
        return self.machine / "work" / tree.name


def write(spec: MachineSpec, *, agent: Path | None = None, netns: str | None = None) -> Bundle:
    """Writes the bundle and makes the directories that the mounts need. Raises OSError.

    `agent` is the program that a restored machine already runs, by default the installed one. `netns` names the network namespace whose
    interfaces runsc takes over into the machine; by default there is none.
    """
    bundle = Bundle(spec.directory)
    for tree in spec.root.trees:
        for directory in (bundle.mount_point(tree), bundle.upper(tree), bundle.work(tree)):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    bundle.state.mkdir(mode=0o700, exist_ok=True)
    bundle.nothing.mkdir(exist_ok=True)
    if agent is None:
        _keep_installed_agent(bundle.agent)
    else:
        shutil.copy(agent, bundle.agent)
    if spec.resources.memory is not None:
        kilobytes = spec.resources.memory >> 10
        bundle.meminfo.write_text("".join(f"{name}: {kilobytes} kB\n" for name in ("MemTotal", "MemFree", "MemAvailable")))
    (bundle.directory / "config.json").write_text(json.dumps(configuration(spec, bundle, netns)))
    return bundle


def _keep_installed_agent(target: Path) -> None:
    """Its own name for the program, so that a machine keeps it when another version is installed: gVisor reads it by name."""
    installed = binary("agentenv-agent")
    try:
        os.link(installed, target)
    except OSError:  # another disk, or another user's file
        shutil.copy(installed, target)


def configuration(spec: MachineSpec, bundle: Bundle, netns: str | None = None) -> dict[str, object]:
    """The content of config.json."""
    network = {"type": "network", **({} if netns is None else {"path": netns})}
    own = [*_CAPABILITIES, *([_OF_THE_AGENT] if spec.network.enabled else [])]
    return {
        "ociVersion": "1.0.2",
        "hostname": spec.hostname,
        "root": {"path": str(bundle.root)},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": agent_arguments(spec),
            "env": [],
            "cwd": "/",
            "capabilities": {"bounding": _CAPABILITIES, "effective": own, "permitted": own},
            "noNewPrivileges": False,
            "rlimits": [{"type": name, "soft": soft, "hard": hard} for name, (soft, hard) in _LIMITS.items()],
        },
        "mounts": _mounts(spec, bundle),
        "linux": {"namespaces": [network, *({"type": kind} for kind in ("pid", "ipc", "uts", "mount"))]},
    }


def agent_arguments(spec: MachineSpec) -> list[str]:
    """The agent's argv (docs/agent-protocol.md, "Starting the agent"): its stream is its standard input, its
    network's frames go through its standard output."""
    words = [AGENT, "--stream", "0", *(["--uplink", "1"] if spec.network.enabled else []), "--user", spec.root.user, "--cwd", spec.root.cwd]
    for name, value in {**spec.root.env, **spec.env}.items():
        words += ["--env", f"{name}={value}"]
    if spec.resources.memory is not None:
        words += ["--memory-limit", str(spec.resources.memory)]
    if spec.resources.cpu is not None:
        words += ["--cpus", str(plan.cores(spec.resources.cpu))]
    return words


def _mounts(spec: MachineSpec, bundle: Bundle) -> list[dict[str, object]]:
    """Of gVisor's own kinds, all but the trees and the agent.

    /tmp and /dev/shm may each grow to half of the sandbox's memory; that is gVisor's default once it knows how much there is.
    """
    half = None if spec.resources.memory is None else max(_SMALLEST_TMPFS, spec.resources.memory // 2)
    run = _RUN_BYTES if half is None else min(_RUN_BYTES, half)
    plain = [
        ("/proc", "proc", "proc", []),
        ("/sys", "sysfs", "sysfs", ["ro"]),
        ("/tmp", "tmpfs", "tmpfs", ["mode=1777", *([f"size={half}"] if half else [])]),
        ("/run", "tmpfs", "tmpfs", ["mode=0755", f"size={run}"]),
        ("/sys/fs/cgroup", "cgroup", "cgroup", []),  # gVisor's own, of which `limits` uses one
        (AGENT, "bind", str(bundle.agent), ["bind", "ro"]),
    ]
    trees = [(tree.target, "bind", str(bundle.mount_point(tree)), ["bind", "rw"]) for tree in spec.root.trees if tree.target != "/"]
    return [
        {"destination": target, "type": kind, "source": source, "options": options} for target, kind, source, options in (*trees, *plain)
    ]


def cores(spec: MachineSpec) -> list[int]:
    """The processors that gVisor is shown while it starts, since it counts them once; it may use all afterwards."""
    available = sorted(os.sched_getaffinity(0))
    return available[: plan.cores(spec.resources.cpu) or len(available)]
