"""The memory of a stopped machine, read out of its QEMU: what was written of it, over what it had started from.

A machine that started anew has anonymous memory, one that was restored maps its checkpoint's file privately. So for both the kernel knows
which pages are the machine's own: those that are there (or swapped) and belong to no file (Documentation/admin-guide/mm/pagemap.rst).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentenv.errors import InfrastructureError
from agentenv.isolation.vm import memory_layers

PAGE = 4096
_ENTRY = 8
_PRESENT_OR_SWAPPED = np.uint64(3 << 62)
_OF_A_FILE = np.uint64(1 << 61)
_CHUNK = 4 << 20
_WORDS_A_PAGE = PAGE // 8


def write_memory(pid: int, address: int, size: int, base: int | None, directory: Path) -> None:
    """Writes `size` bytes of memory at `address` of process `pid` into `directory` (`agentenv.isolation.vm.memory_layers`).

    `base` is a descriptor of the file that the memory was mapped from, of which no byte is written again. Raises OSError (a full disk,
    say), `InfrastructureError` when the process has ended.
    """
    target = directory / memory_layers.WHOLE if base is None else memory_layers.build_on_file(base, directory)
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(writing, size)
        reader = _Reader(pid)
        for start, end in _runs(_written(pid, address, size)):
            for position in range(start * PAGE, end * PAGE, _CHUNK):
                length = min(_CHUNK, end * PAGE - position)
                _write(writing, reader.read(address + position, length), position, sparse=base is None)
    finally:
        os.close(writing)


class _Reader:
    """Reads another process's memory through one buffer."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._buffer = np.empty(_CHUNK, dtype=np.uint8)
        self._call = ctypes.CDLL(None, use_errno=True).process_vm_readv
        self._call.restype = ctypes.c_ssize_t

    def read(self, address: int, length: int) -> NDArray[np.uint8]:
        """Valid until the next call."""
        here = _Vector(self._buffer.ctypes.data, length)
        there = _Vector(address, length)
        count = self._call(self._pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if count != length:
            raise InfrastructureError(f"the memory of the machine cannot be read: {os.strerror(ctypes.get_errno() or 0)}.")
        return self._buffer[:length]


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _written(pid: int, address: int, size: int) -> NDArray[np.bool_]:
    """For each page whether it is the machine's own."""
    with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:  # noqa: PTH123 - a Path has no unbuffered read at a place
        told = os.pread(pagemap.fileno(), size // PAGE * _ENTRY, address // PAGE * _ENTRY)
    if len(told) != size // PAGE * _ENTRY:
        raise InfrastructureError("the machine ended while its memory was written down.")
    entries = np.frombuffer(told, dtype=np.uint64)
    own: NDArray[np.bool_] = ((entries & _PRESENT_OR_SWAPPED) != 0) & ((entries & _OF_A_FILE) == 0)
    return own


def _runs(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """From where to where the flags are set."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _write(target: int, data: NDArray[np.uint8], position: int, *, sparse: bool) -> None:
    """With `sparse` pages of zeros stay holes, as large pages that a guest has hardly touched are full of them."""
    if not sparse:
        _write_all(target, data, position)
        return
    used: NDArray[np.bool_] = np.any(data.view(np.uint64).reshape(-1, _WORDS_A_PAGE), axis=1)
    for start, end in _runs(used):
        _write_all(target, data[start * PAGE : end * PAGE], position + start * PAGE)


def _write_all(target: int, data: NDArray[np.uint8], position: int) -> None:
    view = data.data
    while view:
        count = os.pwrite(target, view, position)
        view, position = view[count:], position + count
