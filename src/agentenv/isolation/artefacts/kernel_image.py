"""A guest's kernel: its release, its modules, and the ELF file in a compressed bzImage."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import mmap
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentenv.errors import InfrastructureError
from agentenv.isolation.artefacts import zstd
from agentenv.isolation.artefacts.lz4 import decompress_legacy
from agentenv.isolation.artefacts.storing import write_once

ELF = b"\x7fELF"
SETUP_MAGIC = b"HdrS"
SECTOR = 512
HEAD = 65536
REMEDY = "Name an x86-64 kernel (vmlinux or bzImage), or let `agentenv setup` fetch one."


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernel in the file `image`, which is an ELF file or a bzImage; `modules` is its lib/modules/RELEASE, None where it has none."""

    image: Path
    release: str
    is_elf: bool
    modules: Path | None

    @classmethod
    def read(cls, image: Path) -> Kernel:
        """Looks at the file. Modules are looked for beside it as a distribution's package lays them out, then in /lib/modules.

        Raises `InfrastructureError` when it is no kernel.
        """
        try:
            with image.open("rb") as file:
                head = file.read(HEAD)
                is_elf = head[:4] == ELF
                if not is_elf and head[0x202:0x206] != SETUP_MAGIC:
                    raise InfrastructureError(f"{image} is no kernel: it is neither an ELF file nor a bzImage.", remedy=REMEDY)
                release = _elf_release(file) if is_elf else _setup_release(head)
        except OSError as error:
            raise InfrastructureError(f"the kernel {image} cannot be read: {error.strerror}.", remedy=REMEDY) from error
        return cls(image, release, is_elf, _find_modules(image, release))

    def elf(self, directory: Path) -> Path:
        """The kernel as an ELF file; unpacked (a few seconds, once) and kept in `directory` where it is a bzImage."""
        if self.is_elf:
            return self.image
        data = self.image.read_bytes()
        path = directory / f"{hashlib.sha256(data).hexdigest()[:32]}.vmlinux"
        if not path.exists():
            write_once(path, unpack_bzimage(data, str(self.image)))
        return path


def unpack_bzimage(data: bytes, what: str = "the kernel") -> bytes:
    """The ELF file that a bzImage carries compressed (Linux, Documentation/arch/x86/boot.rst, `payload_offset`)."""
    setup_sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = (setup_sectors + 1) * SECTOR + offset
    payload = data[start : start + length]
    for magic, decompress in _COMPRESSIONS:
        if payload.startswith(magic):
            try:
                elf = decompress(payload)
            except _DAMAGED as error:
                raise InfrastructureError(f"{what} cannot be unpacked, it is damaged: {error}.", remedy=REMEDY) from error
            if elf.startswith(ELF):
                return elf
    raise InfrastructureError(f"{what} cannot be unpacked: it holds no ELF file in a compression that is known.", remedy=REMEDY)


def _gzip(payload: bytes) -> bytes:
    # The kernel's own length stands behind the compressed data.
    return gzip.decompress(payload[:-4])


def _bzip2(payload: bytes) -> bytes:
    return _complete(bz2.BZ2Decompressor(), payload)


def _xz(payload: bytes) -> bytes:
    return _complete(lzma.LZMADecompressor(lzma.FORMAT_XZ), payload)


def _lzma(payload: bytes) -> bytes:
    return _complete(lzma.LZMADecompressor(lzma.FORMAT_ALONE), payload)


def _complete(decompressor: bz2.BZ2Decompressor | lzma.LZMADecompressor, payload: bytes) -> bytes:
    plain = decompressor.decompress(payload)
    if not decompressor.eof:
        raise EOFError("it ends too early")
    return plain


def _zstd(payload: bytes) -> bytes:
    return zstd.decompress(payload, "the kernel")


_DAMAGED = (EOFError, OSError, ValueError, IndexError, lzma.LZMAError, zlib.error, struct.error)

_COMPRESSIONS: tuple[tuple[bytes, Callable[[bytes], bytes]], ...] = (
    (ELF, bytes),
    (b"\x1f\x8b", _gzip),
    (b"BZh", _bzip2),
    (b"\xfd7zXZ\x00", _xz),
    (b"\x5d\x00\x00", _lzma),
    (b"\x02\x21\x4c\x18", decompress_legacy),
    (b"\x28\xb5\x2f\xfd", _zstd),
)


def _setup_release(data: bytes) -> str:
    (offset,) = struct.unpack_from("<H", data, 0x20E)
    start = offset + SECTOR
    return data[start : data.find(b"\0", start)].split(b" ")[0].decode(errors="replace")


def _elf_release(file: BinaryIO) -> str:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = re.search(rb"Linux version (\S+) ", data)
        return found[1].decode(errors="replace") if found else ""


def _find_modules(image: Path, release: str) -> Path | None:
    if not release:
        return None
    above = image.parent.parent
    candidates = (above / "lib/modules" / release, above / "usr/lib/modules" / release, Path("/lib/modules") / release)
    return next((path for path in candidates if path.is_dir()), None)
