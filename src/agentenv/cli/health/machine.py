"""The machine: cores, memory, disk, limits of this process, the network tools, and KVM for what it is."""

from __future__ import annotations

import os
import re
import resource
import shutil
from pathlib import Path

from agentenv.cli.health.check import Finding
from agentenv.isolation.vm.kvm import API_VERSION, DEVICE, native_kvm
from agentenv.paths import state_home
from agentenv.units import format_size

_LITTLE_DISK = 2 * 10**9
_FEW_FILES = 4096


def hardware() -> Finding:
    """Cores and memory that sandboxes can share."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding("hardware", "ok", f"{cores} cores, {format_size(memory)} memory", data={"cores": cores, "memory_bytes": memory})


def disk() -> Finding:
    """Free space and file system where sandboxes, snapshots and images lie."""
    home = state_home()
    place = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(place).free
    kind = _file_system(place)
    writable = os.access(place, os.W_OK)
    data = {"home": str(home), "free_bytes": free, "file_system": kind, "writable": writable}
    if not writable:
        remedy = "Set AGENTENV_HOME to a directory on a local disk that you may write to."
        return Finding("disk", "failed", f"{place} cannot be written to", remedy=remedy, data=data)
    summary = f"{format_size(free)} free on {kind} for {home}"
    if free < _LITTLE_DISK:
        remedy = "Free some space, or set AGENTENV_HOME to a larger disk."
        return Finding("disk", "limited", summary, remedy=remedy, without="Sandboxes that write little work.", data=data)
    return Finding("disk", "ok", summary, data=data)


def _file_system(place: Path) -> str:
    """The type of the file system that `place` is on, from the longest matching mount point."""
    best, kind = "", "an unknown file system"
    resolved = str(place.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, found, *_ = line.split()
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mount)
        if (resolved == mount or resolved.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def limits() -> Finding:
    """How many processes and open files this user may have."""
    files, files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    data = {"open_files": files, "open_files_hard": files_hard, "processes": processes, "pid_max": pid_max}
    shown = "unlimited" if processes == resource.RLIM_INFINITY else f"{processes:,}"
    hard = "unlimited" if files_hard == resource.RLIM_INFINITY else f"{files_hard:,}"
    summary = f"{files:,} open files (up to {hard}), {shown} processes, {pid_max:,} process numbers"
    if files_hard != resource.RLIM_INFINITY and files_hard < _FEW_FILES:
        remedy = "Raise `nofile` in /etc/security/limits.conf (or LimitNOFILE of the service)."
        return Finding("limits", "limited", summary, remedy=remedy, without=f"Up to about {files_hard // 8} sandboxes at once.", data=data)
    return Finding("limits", "ok", summary, data=data)


def network() -> Finding:
    """What a sandbox's way to the outside world needs: root, ip, nft."""
    tools = {
        name: shutil.which(name) or next((str(p) for p in (Path("/usr/sbin", name), Path("/sbin", name)) if p.exists()), None)
        for name in ("ip", "nft")
    }
    root = os.geteuid() == 0
    data: dict[str, object] = {"root": root, **tools}
    absent = [name for name, path in tools.items() if path is None]
    without = "Sandboxes without network, and reaching their ports from this machine."
    if absent:
        packages = {"ip": "iproute2", "nft": "nftables"}
        remedy = f"Install {' and '.join(packages[name] for name in absent)}, for instance with apt."
        return Finding("network", "limited", f"{' and '.join(absent)} not found", remedy=remedy, without=without, data=data)
    if not root:
        return Finding("network", "limited", "`network.enabled` needs root", remedy="Run as root for it.", without=without, data=data)
    return Finding("network", "ok", "ip and nft found, root", data=data)


def kvm(device: Path = DEVICE) -> Finding:
    """Whether /dev/kvm is there, may be used, and makes a virtual machine; and whether the processor itself runs it."""
    without = "Everything but hardware isolation: the namespace backend needs no KVM."
    found = native_kvm(device)
    data: dict[str, object] = {
        "present": device.exists(),
        "readable": os.access(device, os.R_OK | os.W_OK),
        "hardware": _virtualisation(),
        "instructions_per_second": found.rate,
    }
    if not found.native:
        reason = (found.reason or "").rstrip(".")
        return Finding("kvm", "limited" if found.usable else "missing", reason, remedy=found.remedy, without=without, data=data)
    speed = "" if found.rate is None else f", {found.rate / 1e6:,.0f} million instructions a second"
    return Finding("kvm", "ok", f"{device} makes virtual machines (API {API_VERSION}{speed})", data=data)


def _virtualisation() -> str | None:
    """The processor's extension that KVM builds on, where the kernel shows one."""
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return next((flag for flag in ("vmx", "svm") if flags and flag in flags[1].split()), None)
