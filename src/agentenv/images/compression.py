"""Opens an archive whatever it is compressed with, going by its first bytes and not by its name."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from agentenv.errors import CapabilityError


class Readable(Protocol):
    """A stream of bytes that can only be read."""

    def read(self, size: int, /) -> bytes: ...


ZSTD = b"\x28\xb5\x2f\xfd"


@contextmanager
def decompressed(file: BinaryIO) -> Iterator[Readable]:
    """The plain bytes of `file`, a seekable file at its start that is uncompressed or gzip, bzip2, xz or zstd."""
    magic = file.read(6)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        with gzip.open(file) as plain:
            yield cast(Readable, plain)
    elif magic[:3] == b"BZh":
        with bz2.open(file) as plain_bz2:
            yield plain_bz2
    elif magic == b"\xfd7zXZ\x00":
        with lzma.open(file) as plain_xz:
            yield plain_xz
    elif magic[:4] == ZSTD:
        with _zstd(file) as plain_zstd:
            yield plain_zstd
    else:
        yield file


@contextmanager
def _zstd(file: BinaryIO) -> Iterator[Readable]:
    """Through the program `zstd`, since Python reads this format only from 3.14 on."""
    program = shutil.which("zstd")
    if program is None:
        raise CapabilityError(
            f"{Path(file.name).name} is compressed with zstd, and the program `zstd` is not installed.",
            remedy="apt-get install zstd, or compress the archive with gzip or xz.",
        )
    with subprocess.Popen([program, "-dcq"], stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield process.stdout
            if process.stdout.read(1) == b"" and process.wait() != 0:
                raise EOFError(process.stderr.read().decode(errors="replace").strip())
        finally:
            process.kill()
