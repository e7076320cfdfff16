"""Turns a `MachineSpec` into the records that the launcher is sent and the arguments that the agent is given."""

from __future__ import annotations

import math
import os

from agentenv.isolation.contract import MachineSpec
from agentenv.isolation.namespace.cgroups import Cgroup

# Descriptors that the launcher gives the agent (native/launch/launch.h).
_LISTEN, _MEMORY_USAGE, _CPUINFO, _OOM_KILLS = 3, 4, 5, 6

_RUN_BYTES = 64 << 20
_SMALLEST_TMPFS = 4 << 20


def cores(cpu: float | None) -> int:
    """How many cores a sandbox with that limit sees: never more than this process has; 0 for all."""
    return 0 if cpu is None else min(max(1, math.ceil(cpu)), len(os.sched_getaffinity(0)))


def agent_arguments(spec: MachineSpec, *, accounts_memory: bool) -> list[str]:
    """The agent's argv (docs/agent-protocol.md, "Starting the agent")."""
    words = ["agentenv-agent", "--listen", str(_LISTEN), "--user", spec.root.user, "--cwd", spec.root.cwd]
    for name, value in {**spec.root.env, **spec.env}.items():
        words += ["--env", f"{name}={value}"]
    if spec.resources.memory is not None:
        words += ["--memory-limit", str(spec.resources.memory)]
    if accounts_memory:
        words += ["--memory-usage", str(_MEMORY_USAGE), "--oom-kills", str(_OOM_KILLS)]
    if spec.resources.cpu is not None:
        words += ["--cpus", str(cores(spec.resources.cpu)), "--cpuinfo", str(_CPUINFO)]
    return words


def records(spec: MachineSpec, cgroup: Cgroup) -> list[str]:
    """The launcher's request but for `op` and `id`.

    /tmp and /dev/shm may each grow to half of the sandbox's memory, as by the kernel's default to half of a machine's.
    """
    memory = spec.resources.memory
    half = 0 if memory is None else max(_SMALLEST_TMPFS, memory // 2)
    rows = [f"hostname={spec.hostname}", f"tmp={half}", f"shm={half}", f"run={min(_RUN_BYTES, half) if half else _RUN_BYTES}"]
    rows.append(f"cpus={cores(spec.resources.cpu)}")
    if memory is not None:
        rows.append("show_memory=1")
    if spec.network.netns is not None:
        # Through this process's own mount namespace: the launcher's does not see what was mounted after its start.
        rows.append(f"netns=/proc/{os.getpid()}/root{spec.network.netns}")
    if (into := cgroup.v2_directory) is not None:
        rows.append(f"into={into}")
    rows += [f"enter={file}" for file in cgroup.v1_enter_files]
    if (accounted := cgroup.memory_files) is not None:
        rows += (f"memory_file={accounted.usage}", f"oom_file={accounted.oom_kills}")
    directory = str(spec.directory)
    for tree in spec.root.trees:
        name = tree.name
        rows += (f"tree={tree.target}", f"upper={directory}/upper/{name}", f"work={directory}/work/{name}")
        rows += [f"lower={lower}" for lower in tree.lowers]
    rows += [f"arg={word}" for word in agent_arguments(spec, accounts_memory=accounted is not None)]
    return rows
