"""Kernel modules: which files hold them, what each needs before it, and their content as the kernel takes it.

Everything is read from the modules themselves (their `.modinfo` section), since a kernel package that was only unpacked has no modules.dep.
"""

from __future__ import annotations

import gzip
import lzma
import struct
from collections.abc import Iterable
from pathlib import Path

from agentenv.errors import InfrastructureError
from agentenv.isolation.artefacts import zstd

SUFFIXES = (".ko", ".ko.xz", ".ko.gz", ".ko.zst")
_ELF64_SECTION = struct.Struct("<IIQQQQIIQQ")


class ModuleTree:
    """The modules below a directory `lib/modules/RELEASE`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._builtin: frozenset[str] | None = None
        self._files: dict[str, Path] | None = None

    def in_order(self, names: Iterable[str]) -> list[tuple[str, bytes]]:
        """The modules `names` and all that they need, each after what it needs; what is built into the kernel is left out.

        Raises `InfrastructureError` for a module that is neither there nor built in.
        """
        ordered: dict[str, bytes] = {}
        for name in names:
            self._add(_canonical(name), ordered)
        return list(ordered.items())

    def _add(self, name: str, ordered: dict[str, bytes]) -> None:
        if name in ordered or name in self._built_in():
            return
        path = self._paths().get(name)
        if path is None:
            raise InfrastructureError(
                f"the kernel of {self._directory} has no module {name}.",
                remedy="Use a kernel with virtio, overlayfs and EROFS (`agentenv setup` fetches one).",
            )
        content = read_module(path)
        for needed in dependencies(content):
            self._add(_canonical(needed), ordered)
        ordered[name] = content

    def _built_in(self) -> frozenset[str]:
        if self._builtin is None:
            listed = self._directory / "modules.builtin"
            lines = listed.read_text().split() if listed.is_file() else []
            self._builtin = frozenset(_canonical(Path(line).name.removesuffix(".ko")) for line in lines)
        return self._builtin

    def _paths(self) -> dict[str, Path]:
        if self._files is None:
            self._files = {
                _canonical(path.name.partition(".ko")[0]): path
                for path in sorted(self._directory.rglob("*.ko*"))
                if path.name.endswith(SUFFIXES)
            }
        return self._files


def _canonical(name: str) -> str:
    return name.replace("-", "_")


def read_module(path: Path) -> bytes:
    """The module as an ELF file, whatever it is compressed with."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return zstd.decompress(data, path.name)
    return data


def dependencies(module: bytes) -> list[str]:
    """The modules that must be loaded before (`depends=` of its .modinfo section)."""
    for item in _section(module, b".modinfo").split(b"\0"):
        if item.startswith(b"depends="):
            return [name for name in item.removeprefix(b"depends=").decode().split(",") if name]
    return []


def _section(module: bytes, wanted: bytes) -> bytes:
    """One section of a 64-bit little-endian ELF file (elf(5)); empty where there is none."""
    if module[:6] != b"\x7fELF\x02\x01":
        raise InfrastructureError("a kernel module is no 64-bit ELF file.", remedy="The kernel package is damaged: fetch it again.")
    (table,) = struct.unpack_from("<Q", module, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", module, 0x3A)
    sections = [_ELF64_SECTION.unpack_from(module, table + index * size) for index in range(count)]
    names = sections[names_index][4]
    for section in sections:
        start = names + section[0]
        if module[start : module.index(b"\0", start)] == wanted:
            return module[section[4] : section[4] + section[5]]
    return b""
