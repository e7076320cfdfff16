"""Unpacks archives of root trees without trusting them: nothing outside of the target is ever read, written or linked.

Understands what `tar`, `docker export` and the layers of OCI images contain: hard links, sparse files, extended attributes, ownership
(as root) and whiteouts (https://github.com/opencontainers/image-spec/blob/main/layer.md). What cannot be unpacked safely is refused.
"""

from __future__ import annotations

import errno
import os
import tarfile
import zlib
from collections import deque
from collections.abc import Callable
from lzma import LZMAError
from pathlib import Path
from typing import BinaryIO

from agentenv.errors import CapabilityError
from agentenv.images.compression import Readable, decompressed
from agentenv.images.files import remove_tree

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
XATTR = "SCHILY.xattr."
KEPT_XATTRS = ("user.", "security.capability")
MOST_LINKS = 40
BLOCK = 1 << 20
TAR_BLOCK = 512
ZEROS = bytes(BLOCK)


def extract_archive(path: Path, target: Path, progress: Callable[[str, int, int], None] | None = None, *, limit: int | None = None) -> None:
    """Unpacks the archive at `path` into the existing directory `target`.

    Raises `CapabilityError`, which names the member and the reason, when the archive is cut off, broken, or contains what is refused, and
    when it has more than `limit` bytes once it is decompressed.
    The caller throws `target` away in that case.
    """
    size = path.stat().st_size
    layer = Layer(target)
    try:
        with path.open("rb") as file, decompressed(file) as plain:
            stream = plain if limit is None else _Bounded(plain, limit, path)
            layer.apply(stream, lambda: progress(f"unpacking {path.name}", file.tell(), size) if progress else None)
    except (tarfile.TarError, EOFError, zlib.error, LZMAError, ValueError, OverflowError) as error:
        # The last two are numbers and names that fit into a header and not into a system call.
        raise CapabilityError(
            f"{path} is no complete tar archive: {error or 'it ends too early'}.", remedy="Make or download it again."
        ) from error
    except OSError as error:
        # The decompressors of the standard library report broken data so, without an errno.
        if error.errno is not None:
            raise
        raise CapabilityError(f"{path} is broken: {error}.", remedy="Make or download it again.") from error
    if (target / "manifest.json").is_file() and ((target / "oci-layout").is_file() or (target / "repositories").is_file()):
        raise CapabilityError(
            f"{path} holds an image's layers (`docker save`), not a root tree.", remedy="Use `docker export` of a container."
        )


class _Bounded:
    """Passes so many bytes of a stream on and no more."""

    def __init__(self, stream: Readable, limit: int, path: Path) -> None:
        self._stream = stream
        self._limit = self._left = limit
        self._path = path

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise CapabilityError(
                f"{self._path.name} has more than the {self._limit} bytes that are unpacked here.", remedy="Leave out what is not needed."
            )
        return data


class _Watched:
    """Passes a stream on and keeps its last pieces, to see how the archive ends: `tarfile` takes any broken header for its end."""

    def __init__(self, stream: Readable, after_read: Callable[[], None]) -> None:
        self._stream = stream
        self._after_read = after_read
        self._pieces: deque[bytes] = deque(maxlen=2)
        self._position = 0

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        if data:
            self._pieces.append(data)
            self._position += len(data)
        self._after_read()
        return data

    def ends_at(self, offset: int) -> bool:
        """Whether a block of zeros lies there, which only the end of an archive has in the place of a header."""
        kept = b"".join(self._pieces)
        start = offset - (self._position - len(kept))
        return start >= 0 and kept[start : start + TAR_BLOCK] == bytes(TAR_BLOCK)


class Layer:
    """Archives unpacked one over the other into one tree, the way the layers of an image are. As root with the owners that they name."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._owners = os.geteuid() == 0
        self._made: set[Path] = set()
        self._times: dict[Path, float] = {}

    def apply(self, stream: Readable, after_read: Callable[[], None] = lambda: None) -> None:
        """Unpacks one uncompressed archive; raises `tarfile.TarError` when it is cut off, `CapabilityError` for what is refused."""
        self._made.clear()
        self._times.clear()
        watched = _Watched(stream, after_read)
        with tarfile.open(fileobj=watched, mode="r|", errorlevel=2) as archive:  # type: ignore[call-overload]
            while (member := archive.next()) is not None:
                self._member(archive, member)
                # It would remember every member of an archive of any size.
                archive.members.clear()
            if not watched.ends_at(archive.offset):
                raise tarfile.ReadError("its end is missing")
        # The decompressor checks its sums at the end of its input.
        while watched.read(BLOCK):
            continue
        for path, modified in sorted(self._times.items(), reverse=True):
            os.utime(path, (modified, modified), follow_symlinks=False)

    def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name, member.name)
        if not parts:
            if member.isdir():
                self._set_attributes(self._root, member)
            return
        parent = self._inside(parts[:-1], member.name)
        name = parts[-1]
        if name.startswith(WHITEOUT):
            self._whiteout(parent, name)
            return
        path = parent / name
        self._clear_way(path, member)
        if member.isdir():
            self._make_directory(path)
        elif member.issym():
            if not member.linkname:
                raise CapabilityError(f"{member.name} is a symbolic link to nothing, which no file system can hold.")
            path.symlink_to(member.linkname)
        elif member.islnk():
            self._hard_link(path, member)
        elif member.isfifo():
            os.mkfifo(path)
        elif member.ischr() or member.isblk():
            return  # A sandbox has a /dev of its own; device nodes of an image would only be a hole in the wall.
        elif member.isreg():
            _write_file(archive, member, path)
        else:
            raise CapabilityError(f"{member.name} has the type {member.type!r}, which no file system can hold.")
        self._made.add(path)
        if not member.islnk():
            self._set_attributes(path, member)

    def _inside(self, parts: list[str], member: str) -> Path:
        """The directory that `parts` lead to when the tree is the root, made where missing; no link is followed out of it."""
        pending, here, links = list(parts), self._root, 0
        while pending:
            part = pending.pop(0)
            if part == "..":
                here = here.parent if here != self._root else here
                continue
            path = here / part
            if path.is_symlink():
                links += 1
                if links > MOST_LINKS:
                    raise CapabilityError(f"{member} leads through too many symbolic links.")
                target = path.readlink()
                here = self._root if target.is_absolute() else here
                pending = [*(target.parts[1:] if target.is_absolute() else target.parts), *pending]
                continue
            if not path.is_dir():
                self._make_parent(path, member)
                self._made.add(path)
            here = path
        return here

    def _make_parent(self, path: Path, member: str) -> None:
        if os.path.lexists(path):
            raise CapabilityError(f"{member} lies below {path.name}, which is no directory.")
        path.mkdir(mode=0o755)

    def _make_directory(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def _clear_way(self, path: Path, member: tarfile.TarInfo) -> None:
        if os.path.lexists(path) and not (member.isdir() and path.is_dir() and not path.is_symlink()):
            self._remove(path)

    def _whiteout(self, parent: Path, name: str) -> None:
        """Hides what the archives before this one made; what this one made itself stays, as the specification demands."""
        hidden = [path.name for path in parent.iterdir()] if name == OPAQUE else [name.removeprefix(WHITEOUT)]
        for path in [parent / one for one in hidden if one not in ("", ".", "..")]:
            if path not in self._made and os.path.lexists(path):
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Removes what an archive made, and forgets it: at its name a link may lie next, which nothing must be done through."""
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
            self._made = {made for made in self._made if not made.is_relative_to(path)}
            self._times = {made: time for made, time in self._times.items() if not made.is_relative_to(path)}
        else:
            path.unlink()
            self._made.discard(path)

    def _hard_link(self, path: Path, member: tarfile.TarInfo) -> None:
        parts = _parts(member.linkname, member.name)
        source = self._inside(parts[:-1], member.name) / parts[-1] if parts else self._root
        if not os.path.lexists(source) or (source.is_dir() and not source.is_symlink()):
            raise CapabilityError(f"{member.name} is a hard link to {member.linkname}, which is no file in the archive before it.")
        path.hardlink_to(source)

    def _set_attributes(self, path: Path, member: tarfile.TarInfo) -> None:
        """Owner, mode, extended attributes and time, in the order in which one does not undo the other."""
        if self._owners:
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
        if member.issym():
            return
        path.chmod(member.mode & 0o7777 if self._owners else (member.mode & 0o777) | 0o600 | (0o100 if member.isdir() else 0))
        for header, value in member.pax_headers.items():
            name = header.removeprefix(XATTR)
            if header.startswith(XATTR) and name.startswith(KEPT_XATTRS):
                self._set_xattr(path, name, value)
        if member.isdir():
            self._times[path] = member.mtime
        else:
            os.utime(path, (member.mtime, member.mtime))

    def _set_xattr(self, path: Path, name: str, value: str) -> None:
        if name.startswith("user.overlay."):
            return  # Would tell overlayfs to look for files elsewhere.
        try:
            os.setxattr(path, name, value.encode("utf-8", "surrogateescape"), follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EPERM):
                raise


def _parts(name: str, member: str) -> list[str]:
    """The components of a member's name under the root; a leading slash is the root, as `tar` reads it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise CapabilityError(f"{member!r} points outside of the archive ({name!r}).", remedy="Archives with `..` in a name are refused.")
    return parts


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    source = archive.extractfile(member)
    assert source is not None
    with source, path.open("xb") as target:
        _copy_sparse(source, target)


def _copy_sparse(source: Readable, target: BinaryIO) -> None:
    """Copies to the end of `source`; whole blocks of zeros become holes."""
    size = 0
    while block := source.read(BLOCK):
        size += len(block)
        if block == ZEROS[: len(block)]:
            target.seek(size)
        else:
            target.write(block)
    target.truncate(size)
