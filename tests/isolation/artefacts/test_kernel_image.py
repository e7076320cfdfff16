"""Kernels as they come, and what is unpacked from them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machines import obtain_or_skip

from agentenv.errors import InfrastructureError
from agentenv.isolation.artefacts import Kernel
from agentenv.isolation.artefacts.kernel_image import unpack_bzimage
from agentenv.isolation.artefacts.lz4 import decompress_block, decompress_legacy

VMLINUX = b"\x7fELF" + bytes(60) + b"Linux version 6.1.0-test (builder) #1\n" + b"code" * 5000


def literals(data: bytes) -> bytes:
    """An LZ4 block without any match."""
    size, head = len(data), b""
    if size >= 15:
        rest = size - 15
        head = b"\xff" * (rest // 255) + bytes([rest % 255])
    return bytes([min(size, 15) << 4]) + head + data


def lz4_legacy(data: bytes) -> bytes:
    block = literals(data)
    return struct.pack("<II", 0x184C2102, len(block)) + block


def bzimage(payload: bytes) -> bytes:
    setup = bytearray(2 * 512)
    setup[0x1F1] = 1
    setup[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", setup, 0x20E, 0x300 - 0x200)
    setup[0x300:0x310] = b"6.1.0-test (b) #"
    struct.pack_into("<II", setup, 0x248, 16, len(payload))
    return bytes(setup) + bytes(16) + payload


COMPRESSED = {
    "none": VMLINUX,
    "gzip": gzip.compress(VMLINUX) + struct.pack("<I", len(VMLINUX)),
    "bzip2": bz2.compress(VMLINUX) + b"1234",
    "xz": lzma.compress(VMLINUX) + b"1234",
    "lzma": lzma.compress(VMLINUX, lzma.FORMAT_ALONE) + b"1234",
    "lz4": lz4_legacy(VMLINUX) + b"1234",
}


@pytest.mark.parametrize("way", COMPRESSED)
def test_the_elf_file_is_found_in_a_bzimage(way: str, tmp_path: Path) -> None:
    image = tmp_path / "boot/vmlinuz"
    image.parent.mkdir()
    image.write_bytes(bzimage(COMPRESSED[way]))
    (tmp_path / "lib/modules/6.1.0-test").mkdir(parents=True)
    kernel = Kernel.read(image)
    assert (kernel.release, kernel.is_elf, kernel.modules) == ("6.1.0-test", False, tmp_path / "lib/modules/6.1.0-test")
    elf = kernel.elf(tmp_path / "kept")
    assert elf.read_bytes() == VMLINUX
    assert kernel.elf(tmp_path / "kept") == elf


def test_an_elf_file_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "vmlinux").write_bytes(VMLINUX)
    kernel = Kernel.read(tmp_path / "vmlinux")
    assert (kernel.release, kernel.is_elf, kernel.modules) == ("6.1.0-test", True, None)
    assert kernel.elf(tmp_path) == tmp_path / "vmlinux"


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fEL", bytes(4096)])
def test_what_is_no_kernel_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InfrastructureError, match="is no kernel"):
        Kernel.read(tmp_path / "file")


def test_a_missing_or_truncated_kernel_is_told(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot be read"):
        Kernel.read(tmp_path / "none")
    for way in set(COMPRESSED) - {"none"}:
        with pytest.raises(InfrastructureError, match="cannot be unpacked"):
            unpack_bzimage(bzimage(COMPRESSED[way][: len(COMPRESSED[way]) // 2]))
    with pytest.raises(InfrastructureError, match="no ELF file in a compression that is known"):
        unpack_bzimage(bzimage(b"????????"))


@pytest.mark.soak
def test_a_distributions_kernel(tmp_path: Path) -> None:
    kernel = Kernel.read(obtain_or_skip("kernel"))
    assert kernel.release
    assert kernel.modules is not None
    assert Kernel.read(kernel.elf(tmp_path)).release == kernel.release


@given(st.binary(max_size=2000))
def test_literals(data: bytes) -> None:
    assert decompress_block(literals(data)) == data
    assert decompress_legacy(lz4_legacy(data)) == data


@given(st.binary(min_size=1, max_size=20), st.integers(4, 600))
def test_a_match_may_reach_into_itself(seed: bytes, match: int) -> None:
    token = min(len(seed), 15) << 4 | min(match - 4, 15)
    more = bytes([len(seed) - 15]) if len(seed) >= 15 else b""
    rest = match - 4 - 15
    length = b"\xff" * (rest // 255) + bytes([rest % 255]) if rest >= 0 else b""
    block = bytes([token]) + more + seed + struct.pack("<H", len(seed)) + length + literals(b"")
    assert decompress_block(block) == (seed * (match // len(seed) + 2))[: len(seed) + match]
