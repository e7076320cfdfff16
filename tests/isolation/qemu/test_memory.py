"""Reading memory out of another process: a small program of ours stands in for QEMU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentenv.errors import InfrastructureError
from agentenv.isolation.qemu.memory import PAGE, write_memory
from agentenv.isolation.vm import memory_layers

PAGES = 2048
SIZE = PAGES * PAGE

HOLDER = """
import ctypes, mmap, os, sys
size, path, pages, fill = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
file = os.open(path, os.O_RDWR) if path else -1
private = mmap.MAP_PRIVATE | (0 if path else mmap.MAP_ANONYMOUS)
memory = mmap.mmap(file, size, flags=private, prot=mmap.PROT_READ | mmap.PROT_WRITE)
for number in map(int, pages.split(",")):
    memory[number * 4096 : number * 4096 + 4096] = bytes([fill]) * 4096
memory[900 * 4096]  # read, not written
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path | None, pages: list[int], fill: int = 7) -> Iterator[tuple[int, int]]:
    words = [sys.executable, "-c", HOLDER, str(SIZE), str(path or ""), ",".join(map(str, pages)), str(fill)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


def expected(base: bytes, pages: list[int], fill: int = 7) -> bytes:
    content = bytearray(base)
    for number in pages:
        content[number * PAGE : (number + 1) * PAGE] = bytes([fill]) * PAGE
    return bytes(content)


def test_anonymous_memory_becomes_a_sparse_file(tmp_path: Path) -> None:
    pages = [0, 1, 2, 700, PAGES - 1]
    with holder(None, pages) as (pid, address):
        write_memory(pid, address, SIZE, None, tmp_path)
    assert (tmp_path / "memory").read_bytes() == expected(bytes(SIZE), pages)
    assert (tmp_path / "memory").stat().st_blocks * 512 <= 64 * PAGE


@pytest.mark.parametrize("fill", [7, 0])
def test_of_memory_mapped_from_a_file_what_was_written_is_laid_over_it(tmp_path: Path, fill: int) -> None:
    base = bytes(range(256)) * (SIZE // 256)
    (tmp_path / "base").write_bytes(base)
    pages = [3, 4, 1500]
    (tmp_path / "written").mkdir()
    with holder(tmp_path / "base", pages, fill) as (pid, address), (tmp_path / "base").open("rb") as mapped:
        write_memory(pid, address, SIZE, mapped.fileno(), tmp_path / "written")
    first, second = memory_layers.layers(tmp_path / "written")
    assert first.samefile(tmp_path / "base")
    assert second.stat().st_blocks * 512 <= 8 * PAGE  # what was written, and no more
    assert memory_layers.whole(tmp_path / "written", SIZE).read_bytes() == expected(base, pages, fill)
    assert (tmp_path / "base").read_bytes() == base


def test_a_file_that_was_removed_meanwhile_is_copied(tmp_path: Path) -> None:
    base = b"b" * SIZE
    (tmp_path / "base").write_bytes(base)
    (tmp_path / "written").mkdir()
    with holder(tmp_path / "base", [5]) as (pid, address), (tmp_path / "base").open("rb") as mapped:
        (tmp_path / "base").unlink()
        write_memory(pid, address, SIZE, mapped.fileno(), tmp_path / "written")
    assert memory_layers.whole(tmp_path / "written", SIZE).read_bytes() == expected(base, [5])


def test_a_process_that_has_ended(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, str(SIZE), "", "1", "7"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = int(process.stdout.readline())
        process.kill()
        process.stdout.read()
        with pytest.raises((InfrastructureError, OSError)):
            write_memory(process.pid, address, SIZE, None, tmp_path)
