"""The kernel: user namespaces, overlayfs, seccomp, Landlock, pressure; cgroups and what is lost without them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from agentenv.cli.health.check import Finding

_UNSHARE_USER = "import ctypes, sys; sys.exit(ctypes.CDLL(None, use_errno=True).unshare(0x10000000) and ctypes.get_errno())"
"""Enters a new user namespace (CLONE_NEWUSER of unshare(2)); the exit code is 0 or the errno."""


def kernel() -> Finding:
    """Version and the features that the walls are built of."""
    features = {
        "overlayfs": _has_overlay(),
        "seccomp": Path("/proc/sys/kernel/seccomp/actions_avail").exists(),
        "landlock": "landlock" in _read("/sys/kernel/security/lsm"),
        "pressure": Path("/proc/pressure/cpu").exists(),
        "pidfd": hasattr(os, "pidfd_open"),
    }
    absent = [name for name, there in features.items() if not there]
    summary = f"Linux {platform.release()} on {platform.machine()}"
    data = {"release": platform.release(), "machine": platform.machine(), **features}
    if sys.platform != "linux":
        return Finding(
            "kernel", "failed", f"{sys.platform} is not Linux", remedy="Run AgentENV on Linux, for instance in a virtual machine."
        )
    if "overlayfs" in absent or "seccomp" in absent:
        remedy = "Load the overlay module (`modprobe overlay`), or use a kernel with overlayfs and seccomp."
        return Finding("kernel", "failed", f"{summary}, without {', '.join(absent)}", remedy=remedy, data=data)
    without = f"without {', '.join(absent)}" if absent else ""
    details = (f"{without}: a sandbox has one wall less, or its use of resources is known less exactly",) if absent else ()
    present = ", ".join(name for name, there in features.items() if there)
    return Finding("kernel", "ok", f"{summary}: {present}", details=details, data=data)


def user_namespaces() -> Finding:
    """Whether an ordinary user can make namespaces: tried for real, in a process of its own."""
    tried = subprocess.run([sys.executable, "-S", "-c", _UNSHARE_USER], capture_output=True, timeout=10, check=False)
    limits = {
        "max_user_namespaces": _read("/proc/sys/user/max_user_namespaces") or None,
        "unprivileged_userns_clone": _read("/proc/sys/kernel/unprivileged_userns_clone") or None,
        "apparmor_restrict_unprivileged_userns": _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") or None,
    }
    root = os.geteuid() == 0
    data: dict[str, object] = {"root": root, "works": tried.returncode == 0, **limits}
    if tried.returncode == 0:
        closed = limits["unprivileged_userns_clone"] == "0" or limits["apparmor_restrict_unprivileged_userns"] == "1"
        details = ("ordinary users may not make them here; you are root",) if closed and root else ()
        return Finding("user namespaces", "ok", "can be made", details=details, data=data)
    reason = os.strerror(tried.returncode) if tried.returncode > 0 else "the attempt was killed"
    without = "As root the sandboxes need none." if root else "Nothing: an ordinary user's sandboxes need them."
    return Finding("user namespaces", "limited" if root else "failed", reason, remedy=_userns_remedy(limits), without=without, data=data)


def _userns_remedy(limits: dict[str, str | None]) -> str:
    if limits["apparmor_restrict_unprivileged_userns"] == "1":
        return "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or an AppArmor profile that allows them."
    if limits["unprivileged_userns_clone"] == "0":
        return "`sysctl -w kernel.unprivileged_userns_clone=1` as root."
    if limits["max_user_namespaces"] == "0":
        return "`sysctl -w user.max_user_namespaces=15000` as root."
    return "Run as root, or in a container that allows unshare (its seccomp profile forbids it)."


def cgroups() -> Finding:
    """Which limits can be enforced, through which hierarchy, and what is lost for want of one."""
    from agentenv.isolation.namespace.cgroups import CgroupTree

    tree = CgroupTree.discover()
    controllers = sorted(tree.controllers)
    versions = sorted({f"v{hierarchy.version}" for hierarchy in tree.hierarchies})
    data = {"controllers": controllers, "versions": versions, "freeze": tree.can_freeze, "lost": list(tree.lost)}
    if not tree.hierarchies:
        remedy = "Run as root, or let systemd delegate a cgroup: `systemd-run --user --scope -p Delegate=yes agentenv …`."
        without = "Sandboxes start, without limits of memory and processor time."
        return Finding("cgroups", "limited", "none can be written to", remedy=remedy, without=without, details=tree.lost, data=data)
    summary = f"{', '.join(controllers) or 'no limits'} through {' and '.join(versions)}" + ("; pause works" if tree.can_freeze else "")
    return Finding("cgroups", "limited" if tree.lost else "ok", summary, details=tree.lost, data=data)


def _has_overlay() -> bool:
    return any(line.split()[-1:] == ["overlay"] for line in _read("/proc/filesystems").splitlines()) or any(
        Path(f"/lib/modules/{platform.release()}/kernel/fs/overlayfs").glob("overlay.ko*")
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
