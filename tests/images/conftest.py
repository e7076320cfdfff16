"""Archives for the tests, made member by member so that they can also be what no `tar` would make."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest


def pack(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], mode: str = "w") -> bytes:
    """An archive with these members, in this order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for member in members:
            info, content = member if isinstance(member, tuple) else (member, b"")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, **facts: object) -> tarfile.TarInfo:
    """One member's header."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info


def file(name: str, content: bytes = b"x", **facts: object) -> tuple[tarfile.TarInfo, bytes]:
    """One regular file."""
    return entry(name, **facts), content


def directory(name: str, **facts: object) -> tarfile.TarInfo:
    return entry(name, tarfile.DIRTYPE, **facts)


def symlink(name: str, target: str) -> tarfile.TarInfo:
    return entry(name, tarfile.SYMTYPE, linkname=target)


def hardlink(name: str, target: str) -> tarfile.TarInfo:
    return entry(name, tarfile.LNKTYPE, linkname=target)


@pytest.fixture
def write_archive(tmp_path: Path) -> Callable[..., Path]:
    """Writes an archive into the test's directory."""

    def write(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], name: str = "image.tar", mode: str = "w") -> Path:
        path = tmp_path / name
        path.write_bytes(pack(*members, mode=mode))
        return path

    return write
