"""Which files a COPY means, what they are called where they go, and the digest by which it is known whether they changed."""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentenv.errors import ConfigError
from agentenv.templates.dockerfile.ignore import Ignored, translate

_WILD = frozenset("*?[")
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Picked:
    """One file or directory: its name below the destination, and where it lies. `named`: it is a file that a source itself meant."""

    name: str
    path: Path
    named: bool = False


@dataclass(frozen=True, slots=True)
class Selection:
    """What is copied. `single`: it is one file, so that the destination may be its new name."""

    entries: tuple[Picked, ...]
    single: bool

    def digest(self) -> str:
        """Of names, kinds, modes and content; not of owners and times, which differ between two checkouts of the same files."""
        hasher = hashlib.sha256()
        for entry in sorted(self.entries, key=lambda entry: entry.name):
            status = entry.path.lstat()
            mode = 0 if stat.S_ISLNK(status.st_mode) else stat.S_IMODE(status.st_mode)
            hasher.update(f"{entry.name}\0{stat.S_IFMT(status.st_mode):o}\0{mode:o}\0".encode(errors="surrogateescape"))
            if stat.S_ISLNK(status.st_mode):
                hasher.update(os.fsencode(entry.path.readlink()))
            elif stat.S_ISREG(status.st_mode):
                with entry.path.open("rb") as file:
                    hasher.update(hashlib.file_digest(file, "sha256").digest())
            hasher.update(b"\n")
        return hasher.hexdigest()

    def pack(self, file: BinaryIO, *, mode: int | None, owners: bool, renamed: str | None = None) -> int:
        """Writes the files as a tar archive and returns how many there are.

        `mode` takes the place of theirs; with `owners` the archive has the files' own, else root; `renamed` is the name of a single one.
        """
        links: dict[tuple[int, int], str] = {}
        with tarfile.open(mode="w|", fileobj=file, format=tarfile.PAX_FORMAT, bufsize=BLOCK) as archive:
            for entry in self.entries:
                _add(archive, entry.path, renamed or entry.name, mode, owners, links)
        return len(self.entries)


def select(root: Path, sources: Sequence[str], ignored: Ignored = Ignored()) -> Selection:  # noqa: B008 - it is frozen
    """The files below `root` that `sources` mean: of a directory what is in it, of a file itself.

    Wildcards are those of Go's `filepath.Match`. Raises `ConfigError` for a source that means nothing, or leads out of `root`.
    """
    entries: dict[str, Picked] = {}
    found = [(source, path) for source in sources for path in _matches(root, source, ignored)]
    files = 0
    for source, relative in found:
        path = _inside(root, relative, source)
        if path.is_dir():
            for picked in _content(root, path, ignored):
                entries[picked.name] = picked
        else:
            files += 1
            entries[posixpath.basename(relative)] = Picked(posixpath.basename(relative), path, named=True)
    single = files == 1 and len(found) == 1 and len(sources) == 1 and not _WILD & set(sources[0])
    return Selection(tuple(entries.values()), single)


def fixed_prefix(source: str) -> str:
    """The part of a source before its first wildcard, as an absolute path: what has to be at hand to select from."""
    parts = []
    for part in posixpath.normpath(f"/{source.lstrip('/')}").split("/")[1:]:
        if _WILD & set(part):
            break
        parts.append(part)
    return "/" + "/".join(filter(None, parts))


def _matches(root: Path, source: str, ignored: Ignored) -> list[str]:
    """The paths below `root` that a source means. `..` ends at `root`, as Docker has it."""
    parts = [part for part in posixpath.normpath(f"/{source}").split("/") if part]
    found = [""]
    for part in parts:
        found = [name for above in found for name in _step(root, above, part)]
    if not parts:
        return ["."]
    kept = [name for name in found if not ignored.matches(name) or ((root / name).is_dir() and ignored.may_take_back_below(name))]
    if not kept:
        why = "it is left out by .dockerignore" if found else "there is no such file or directory"
        remedy = "Paths are relative to the directory that is built, or to what --from names."
        raise ConfigError(f"{source!r} cannot be copied: {why}", remedy=remedy)
    return sorted(kept)


def _step(root: Path, above: str, part: str) -> Iterator[str]:
    directory = root / above
    if not _WILD & set(part):
        if os.path.lexists(directory / part):
            yield f"{above}/{part}".lstrip("/")
        return
    try:
        pattern = translate(part)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if directory.is_dir():
        yield from (f"{above}/{entry.name}".lstrip("/") for entry in sorted(directory.iterdir()) if pattern.fullmatch(entry.name))


def _inside(root: Path, relative: str, source: str) -> Path:
    """Where a source lies; a link at its end is followed, but not out of `root`."""
    path = root / relative
    real = path.resolve()
    if not real.is_relative_to(root.resolve()):
        raise ConfigError(f"{source!r} leads out of {root}", remedy="Copy the file itself into the build's directory.")
    if not real.exists():
        raise ConfigError(f"{source!r} is a link to nothing")
    return real if path.is_symlink() else path


def _content(root: Path, directory: Path, ignored: Ignored) -> Iterator[Picked]:
    """What is in a directory and below, parents first."""
    pending = [directory]
    while pending:
        here = pending.pop()
        for path in sorted(here.iterdir()):
            relative = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
            left_out = ignored.matches(relative)
            is_directory = path.is_dir() and not path.is_symlink()
            if is_directory and (not left_out or ignored.may_take_back_below(relative)):
                pending.append(path)
            if not left_out:
                yield Picked(path.relative_to(directory).as_posix(), path)


def _add(archive: tarfile.TarFile, path: Path, name: str, mode: int | None, owners: bool, links: dict[tuple[int, int], str]) -> None:
    member = archive.gettarinfo(path, name)
    if member is None or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return
    # tarfile remembers names of its own for hard links, which would be those of another archive's root.
    status = path.lstat()
    member.uname = member.gname = ""
    if not owners:
        member.uid = member.gid = 0
    if mode is not None and not member.issym():
        member.mode = mode
    if stat.S_ISREG(status.st_mode):
        first = links.setdefault((status.st_dev, status.st_ino), name) if status.st_nlink > 1 else name
        member.type, member.linkname = (tarfile.REGTYPE, "") if first == name else (tarfile.LNKTYPE, first)
        member.size = status.st_size if first == name else 0
    if member.isreg():
        with path.open("rb") as content:
            archive.addfile(member, content)
    else:
        archive.addfile(member)
