"""How fast this machine's time-stamp counter counts: an emulated processor hands it through, and its kernel must know."""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import time
from collections.abc import Callable

from agentenv.errors import CapabilityError

_READ_COUNTER = bytes.fromhex("0f3148c1e2204809d0c3")
"""rdtsc; shl rdx, 32; or rax, rdx; ret"""

_MEASURED_NS = 20_000_000
_TRIES = 50


@functools.cache
def tsc_khz() -> int:
    """Thousands of counts per second, measured once per process (20 ms).

    Raises `CapabilityError` on processors other than x86-64.
    """
    if platform.machine() != "x86_64":
        raise CapabilityError(f"emulated guests are made for x86-64 hosts; this one is {platform.machine()}.")
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(_READ_COUNTER)
    holder = ctypes.c_char.from_buffer(code)
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(holder))
    try:
        first, began = _together(counter)
        while time.monotonic_ns() < began + _MEASURED_NS:
            pass
        last, ended = _together(counter)
    finally:
        del holder
        code.close()
    return (last - first) * 1_000_000 // (ended - began)


def _together(counter: Callable[[], int]) -> tuple[int, int]:
    """The counter and the time (ns) of one moment: of many attempts that which was disturbed least."""
    best: tuple[int, int, int] | None = None
    for _ in range(_TRIES):
        before, count, after = time.monotonic_ns(), counter(), time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, count, (before + after) // 2)
    assert best is not None
    return best[1], best[2]
