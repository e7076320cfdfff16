"""Finds out whether Firecracker works on this machine by doing it: the tiny guest starts and counts.

That takes some tens of milliseconds, so a success is written down, for this Firecracker on this kernel. A failure is tried again each time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from agentenv.errors import AgentEnvError, BackendUnavailable, InfrastructureError
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.contract import Capabilities, Probe
from agentenv.isolation.firecracker import counter
from agentenv.isolation.firecracker.launcher import Launcher
from agentenv.isolation.firecracker.release import Programs
from agentenv.isolation.firecracker.vm import Boot, Vm
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.vm.kvm import native_kvm
from agentenv.paths import state_home

NAME = "firecracker"
_PATIENCE = 10.0
_MEMORY = 16


def require_native_kvm() -> None:
    """Raises `BackendUnavailable` where no Linux comes up in a virtual machine."""
    found = native_kvm()
    if platform.machine() != "x86_64":
        raise BackendUnavailable("the Firecracker backend is for x86-64.", remedy="Use `isolation: gvisor` or `namespace`.")
    if not found.native:
        raise BackendUnavailable(
            f"Firecracker needs a KVM that the processor runs: {found.reason}", remedy=found.remedy or "Use another backend."
        )


def probe(programs: Programs, cgroups: CgroupTree, store: ArtefactStore, directory: Path) -> Probe:
    """Tries it in a temporary directory below `directory`, unless that has succeeded before; says what is weaker than it could be."""
    version = str(programs.release)
    try:
        require_native_kvm()
        store.require("kernel")
        note = _note(programs)
        if not note.exists():
            # A thread of its own, since the caller may be inside an event loop.
            with ThreadPoolExecutor(1, thread_name_prefix="agentenv-probe") as thread:
                thread.submit(asyncio.run, attempt(programs, cgroups, directory)).result()
            with suppress(OSError):  # then it is tried again next time
                note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                note.touch()
    except (AgentEnvError, OSError) as error:
        remedy = getattr(error, "remedy", None) or "Use another backend; `agentenv doctor` shows which there are."
        return Probe(NAME, usable=False, version=version, reason=getattr(error, "message", str(error)), remedy=remedy)
    return Probe(NAME, usable=True, version=version, capabilities=capabilities(programs, cgroups))


def _note(programs: Programs) -> Path:
    status = programs.firecracker.stat()
    who = "free" if programs.jailer is None else "jailed"
    told = f"{programs.firecracker} {status.st_size} {status.st_mtime_ns} {platform.release()} {platform.version()} {os.geteuid()} {who}"
    return state_home() / "probes" / f"firecracker-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


async def attempt(programs: Programs, cgroups: CgroupTree, directory: Path) -> None:
    """Starts the tiny guest and returns when it has counted. Raises `InfrastructureError`, OSError."""
    with tempfile.TemporaryDirectory(prefix="probe", dir=directory) as scratch:
        launcher = await Launcher.open(programs, cgroups, Path(scratch))
        try:
            vmm = await launcher.launch()
            try:
                kernel = await asyncio.to_thread(counter.write_kernel, Path(scratch) / "kernel")
                vm = await Vm.boot(vmm, programs.release, Boot(kernel, "", _MEMORY))
                await _counted(vm)
            finally:
                await vmm.end()
        finally:
            await launcher.close()


async def _counted(vm: Vm) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            while counter.count(vm.vmm.monitor.output) is None:
                await vm.vmm.monitor.more()
    except TimeoutError as error:
        printed = vm.vmm.monitor.output.strip()[-400:] or "nothing"
        raise InfrastructureError(f"a tiny guest did not run within {_PATIENCE:g} s; it printed: {printed}") from error


def capabilities(programs: Programs, cgroups: CgroupTree) -> Capabilities:
    """What can be promised given the programs and the cgroups that can be used."""
    lost = [
        *(text for text in cgroups.lost if not text.startswith(("memory", "processes"))),
        *programs.release.lost,
        "resize: memory and processors can be taken back and given again, but not beyond what a sandbox started with.",
    ]
    if programs.jailer is None:
        lost.append("walls: without the jailer Firecracker runs as this user, and sees this machine's files.")
    return Capabilities(
        memory_snapshot=True,
        filesystem_snapshot=True,
        pause=True,
        live_resize=True,
        memory_limit=True,
        cpu_limit=True,
        process_limit=True,
        disk_limit=True,
        network=os.geteuid() == 0,
        users=True,
        hardware_isolation=True,
        disk_image=True,
        lost=tuple(lost),
    )
