"""The rules of overlayfs (https://docs.kernel.org/filesystems/overlayfs.html), for those who look at layers without mounting them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agentenv.errors import CapabilityError

WHITEOUT_DEVICE = os.makedev(0, 0)
OPAQUE_ATTRIBUTES = ("trusted.overlay.opaque", "user.overlay.opaque")
"""The first is root's; the second is read where overlayfs is mounted by an ordinary user (its option `userxattr`)."""

MOST_LINKS = 40
_NO_LINK = {errno.EXDEV, errno.EMLINK, errno.EPERM}
_NO_XATTRS = {errno.EOPNOTSUPP, errno.ENODATA, errno.EPERM}
_OWN = ("trusted.overlay.", "user.overlay.")


def is_whiteout(path: Path) -> bool:
    """Whether overlayfs takes what is at `path` for the absence of a file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == WHITEOUT_DEVICE


def make_whiteout(path: Path) -> None:
    """Lets there be no file of that name in the layers below. Needs no rights (since Linux 5.8)."""
    os.mknod(path, stat.S_IFCHR, WHITEOUT_DEVICE)


def is_opaque(path: Path) -> bool:
    """Whether a directory hides those of its name in the layers below."""
    names = os.listxattr(path, follow_symlinks=False)
    return any(name in names and os.getxattr(path, name, follow_symlinks=False) == b"y" for name in OPAQUE_ATTRIBUTES)


def make_opaque(path: Path) -> None:
    """Lets a directory hide those of its name in the layers below."""
    try:
        os.setxattr(path, OPAQUE_ATTRIBUTES[0], b"y")
    except PermissionError:
        os.setxattr(path, OPAQUE_ATTRIBUTES[1], b"y")


def children(directories: Sequence[Path]) -> dict[str, list[Path]]:
    """What a merged directory holds: for each name where it lies, for a directory all that merge into it, the topmost first."""
    found: dict[str, list[Path]] = {}
    closed: set[str] = set()
    for directory in directories:
        for entry in os.scandir(directory):
            if entry.name in closed:
                continue
            path = Path(entry.path)
            if not entry.is_dir(follow_symlinks=False):
                closed.add(entry.name)
                if entry.name not in found and not is_whiteout(path):
                    found[entry.name] = [path]
                continue
            found.setdefault(entry.name, []).append(path)
            if is_opaque(path):
                closed.add(entry.name)
    return found


@dataclass(frozen=True, slots=True)
class Merged:
    """The files that layers (the topmost first) show together."""

    layers: tuple[Path, ...]

    def find(self, path: str) -> list[Path]:
        """Where `path` lies, links on the way and at its end followed within the tree; for a directory all that merge. Empty: nowhere."""
        pending, links = [part for part in PurePosixPath("/", path).parts if part != "/"], 0
        way: list[list[Path]] = [list(self.layers)]
        while pending:
            part = pending.pop(0)
            if part == "..":
                way = way[:-1] or way
                continue
            here = _child(way[-1], part)
            if not here:
                return []
            if here[0].is_symlink():
                links += 1
                if links > MOST_LINKS:
                    return []
                target = here[0].readlink()
                way = way[:1] if target.is_absolute() else way
                pending = [*(name for name in target.parts if name != "/"), *pending]
                continue
            if not here[0].is_dir() and pending:
                return []
            way.append(here)
        return way[-1]

    def read(self, path: str) -> bytes | None:
        """The content of the file at `path`; None where there is no file."""
        found = self.find(path)
        return found[0].read_bytes() if found and found[0].is_file() else None


def _child(directories: Sequence[Path], name: str) -> list[Path]:
    """`children` for one name."""
    found: list[Path] = []
    for directory in directories:
        path = directory / name
        if not os.path.lexists(path):
            continue
        if path.is_symlink() or not path.is_dir():
            if not found and not is_whiteout(path):
                return [path]
            break
        found.append(path)
        if is_opaque(path):
            break
    return found


def flatten(layers: Sequence[Path], target: Path, *, linked: frozenset[Path] = frozenset()) -> None:
    """Makes the empty directory `target` hold what `layers` (the topmost first) show together.

    Files of the layers in `linked`, which never change, become names of the same files where the file system can do that; others are
    copied. Owners are kept as far as we may set them. Raises OSError.
    """
    _flatten(list(layers), target, tuple(f"{layer}/" for layer in linked), {})


def _flatten(directories: Sequence[Path], target: Path, linked: tuple[str, ...], copies: dict[tuple[int, int], Path]) -> None:
    for name, paths in children(directories).items():
        source, goal = paths[0], target / name
        if stat.S_ISDIR(source.lstat().st_mode):
            goal.mkdir()
            _flatten(paths, goal, linked, copies)
        else:
            _place(source, goal, os.fspath(source).startswith(linked), copies)
    copy_attributes(directories[0], target)


def _place(source: Path, goal: Path, link: bool, copies: dict[tuple[int, int], Path]) -> None:
    status = source.lstat()
    if link and _same_file(source, goal):
        return
    first = copies.setdefault((status.st_dev, status.st_ino), goal) if status.st_nlink > 1 else goal
    if first is not goal:
        os.link(first, goal, follow_symlinks=False)
    elif stat.S_ISREG(status.st_mode):
        shutil.copyfile(source, goal)
        copy_attributes(source, goal)
    elif stat.S_ISLNK(status.st_mode):
        goal.symlink_to(source.readlink())
        copy_attributes(source, goal)
    elif stat.S_ISFIFO(status.st_mode):
        os.mkfifo(goal)
        copy_attributes(source, goal)
    # Sockets and devices mean nothing on another machine.


def _same_file(source: Path, goal: Path) -> bool:
    try:
        os.link(source, goal, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def copy_attributes(source: Path, target: Path) -> None:
    """Owner, extended attributes (but overlayfs' own), mode and times, in the order in which none undoes another."""
    status = source.lstat()
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    for name in os.listxattr(source, follow_symlinks=False):
        if not name.startswith(_OWN):
            try:
                os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_XATTRS:
                    raise
    if not stat.S_ISLNK(status.st_mode):
        target.chmod(stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def require_few(layers: Sequence[object], what: str, most: int = 450) -> None:
    """Raises `CapabilityError` where there are more layers than overlayfs takes over all kernels, room for snapshots left."""
    if len(layers) > most:
        raise CapabilityError(f"{what} has {len(layers)} layers; a sandbox takes {most}.", remedy="Squash them into fewer.")
