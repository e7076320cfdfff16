"""Which cgroup hierarchies this process can use, found from /proc/self/mountinfo and /proc/self/cgroup; nothing is created here.

Three set-ups occur: everything in version 2, everything in version 1, and the hybrid in which version 1 holds the controllers
while a version 2 tree without any stands beside it. Formats: proc(5), cgroups(7).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentenv.isolation.namespace import cgroup_files as files

_WHAT_A_CONTROLLER_DOES = {
    "memory": "memory cannot be limited",
    "cpu": "processor time cannot be limited",
    "pids": "the number of processes cannot be limited",
    "io": "disk traffic cannot be shared out or limited",
}
_V1_NAMES = {"memory": "memory", "cpu": "cpu", "pids": "pids", "io": "blkio"}


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted cgroup hierarchy: `root` is the group that `point` shows, `controllers` those bound to it (version 1 only)."""

    version: int
    root: str
    point: str
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One hierarchy that sandboxes are put in. `base` is the group that we may write in, `controllers` what we use it for.

    Sandboxes' groups lie directly below `base`, beside the machine's other groups and processes: in one group of ours all sandboxes
    together would get as much of a busy processor as a single process beside it.
    """

    version: int
    base: str
    controllers: frozenset[str]

    @property
    def deferred(self) -> bool:
        """Whether a sandbox enters only once it is needed: version 1 has a hierarchy for disks alone, and few ever limit those."""
        return self.version == 1 and self.controllers == {"io"}


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found: the usable hierarchies and, in plain words, what is lost for want of others."""

    hierarchies: tuple[Hierarchy, ...]
    lost: tuple[str, ...]


def unescape(field: str) -> str:
    """A field of /proc/self/mountinfo, in which spaces and the like are written as octal numbers, as plain text."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def parse_mounts(mountinfo: str) -> tuple[Mount, ...]:
    """The cgroup mounts in the text of /proc/self/mountinfo, in its order."""
    mounts = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        mine, filesystem = left.split(" "), right.split(" ")
        if not separator or len(mine) < 5 or len(filesystem) < 3:
            continue
        root, point = unescape(mine[3]), unescape(mine[4])
        if filesystem[0] == "cgroup2":
            mounts.append(Mount(2, root, point, frozenset()))
        elif filesystem[0] == "cgroup":
            mounts.append(Mount(1, root, point, frozenset(filesystem[2].split(","))))
    return tuple(mounts)


def parse_memberships(text: str) -> dict[str, str]:
    """The text of /proc/self/cgroup as controller -> group; version 2 has the key ""."""
    memberships: dict[str, str] = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, separator, group = rest.partition(":")
        if number.isdigit() and separator:
            memberships.update(dict.fromkeys(controllers.split(","), group))
    return memberships


def discover(mountinfo: str | None = None, memberships: str | None = None) -> Discovery:
    """Looks at this machine; the arguments replace the texts of /proc/self/mountinfo and /proc/self/cgroup."""
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo)
    groups = parse_memberships(Path("/proc/self/cgroup").read_text() if memberships is None else memberships)
    if not mounts:
        return Discovery((), ("no cgroup file system is mounted: a sandbox has no limits of its own and cannot be paused.",))

    lost: list[str] = []
    found: dict[tuple[int, str], set[str]] = {}
    why_not: dict[str, str] = {}
    v2 = next((mount for mount in mounts if mount.version == 2), None)
    base = _writable_base(v2, groups.get("", "/")) if v2 else None
    if base is not None:
        usable, why_not = _v2_controllers(base)
        found[2, base] = usable
    else:
        lost.append(_why_no_v2(v2))
    covered: set[str] = set().union(*found.values())
    for controller, consequence in _WHAT_A_CONTROLLER_DOES.items():
        if controller in covered:
            continue
        v1_base, reason = _v1_base(mounts, groups, _V1_NAMES[controller])
        if v1_base is not None:
            found.setdefault((1, v1_base), set()).add(controller)
        else:
            lost.append(f"{consequence}: {why_not.get(controller) or reason}.")
    if base is None:
        for controller in ("freezer", "cpuacct"):
            v1_base, _ = _v1_base(mounts, groups, controller)
            if v1_base is not None:
                found.setdefault((1, v1_base), set()).add(controller)
    hierarchies = tuple(Hierarchy(version, where, frozenset(use)) for (version, where), use in found.items())
    return Discovery(hierarchies, tuple(lost))


def _candidates(mount: Mount, group: str) -> Iterator[str]:
    """The directories, topmost first, from the mount down to our own group: only these are ancestors that we may be moved below."""
    yield mount.point
    relative = os.path.relpath(group, mount.root)
    if relative == "." or relative.startswith(".."):
        return
    path = mount.point
    for part in relative.split("/"):
        path = f"{path}/{part}"
        yield path


def _writable_base(mount: Mount, group: str) -> str | None:
    """The highest group that we may make groups in and move our processes within (cgroup-v2.rst, "Delegation Containment")."""
    for candidate in _candidates(mount, group):
        needed = [candidate, f"{candidate}/cgroup.procs"]
        if mount.version == 2:
            needed.append(f"{candidate}/cgroup.subtree_control")
        if all(os.access(path, os.W_OK, effective_ids=True) for path in needed):
            return candidate
    return None


def _v2_controllers(base: str) -> tuple[set[str], dict[str, str]]:
    """Those controllers that groups below `base` can have, and for the others in its tree why not."""
    available = set((files.read(f"{base}/cgroup.controllers") or "").split()) & set(_WHAT_A_CONTROLLER_DOES)
    enabled = set((files.read(f"{base}/cgroup.subtree_control") or "").split())
    is_root = files.read(f"{base}/cgroup.type") is None
    if is_root or not files.read_processes(f"{base}/cgroup.procs"):
        return available, {}
    reason = (
        f"the controller cannot be handed down from {base} because processes live directly in that group "
        "(start it with systemd's DelegateSubgroup=, or move them into a group below it)"
    )
    return available & enabled, dict.fromkeys(available - enabled, reason)


def _v1_base(mounts: tuple[Mount, ...], groups: dict[str, str], controller: str) -> tuple[str | None, str]:
    mount = next((mount for mount in mounts if mount.version == 1 and controller in mount.controllers), None)
    if mount is None:
        return None, f"no hierarchy with the {controller} controller is mounted or delegated to this user"
    base = _writable_base(mount, groups.get(controller, "/"))
    return base, "" if base else f"{mount.point} is not writable for user {os.geteuid()}"


def _why_no_v2(mount: Mount | None) -> str:
    consequence = "a sandbox is frozen and killed process by process, and its pressure (PSI) is unknown"
    if mount is None:
        return f"{consequence}: no cgroup v2 hierarchy is mounted."
    return (
        f"{consequence}: no group on the way from {mount.point} to this process's own is writable for user {os.geteuid()} "
        "(under systemd, `systemd-run --user --scope COMMAND` gives it one)."
    )
