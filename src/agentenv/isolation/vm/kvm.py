"""Whether /dev/kvm makes machines here, and whether the processor itself runs them: a KVM may also be an emulation.

An emulating KVM takes every call and runs a few million instructions a second, some instructions not at all: a kernel such as Linux needs
minutes there or does not come up. So a virtual machine of one page is made, and a loop is timed in it (Documentation/virt/kvm/api.rst).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

DEVICE = Path("/dev/kvm")
NATIVE_RATE = 30e6
"""Guest instructions a second. Emulations reach a few millions, a processor hundreds of millions even where it is shared with others."""

API_VERSION = 12
"""The stable one since Linux 2.6.22."""

_GET_API_VERSION = 0xAE00
_CREATE_VM = 0xAE01
_GET_VCPU_MMAP_SIZE = 0xAE04
_CREATE_VCPU = 0xAE41
_SET_TSS_ADDR = 0xAE47
_RUN = 0xAE80
_SET_USER_MEMORY_REGION = 0x4020AE46
_SET_REGS = 0x4090AE82
_GET_SREGS = 0x8138AE83
_SET_SREGS = 0x4138AE84
_EXIT_HLT = 5

_PAGE = mmap.PAGESIZE
_TSS = 0x7FFBD000  # three pages that Intel's processors want where no memory of the guest is
_LOOP = bytes.fromhex("49 75 fd f4")  # dec ecx; jnz back to it; hlt
_LOOP_INSTRUCTIONS = 2
_RCX, _RIP, _RFLAGS, _REGISTERS = 2, 16, 17, 18  # places in struct kvm_regs
_SEGMENT = struct.Struct("<QIH8BH")  # struct kvm_segment
_SREGS_SIZE = 312
_CR0 = 224  # its offset in struct kvm_sregs, behind eight segments and two tables

_FEW_ROUNDS, _MANY_ROUNDS = 2_000, 500_000
_PROMISING = 3e6
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class KvmFinding:
    """`usable`: machines can be made; `native`: the processor runs them, at `rate` instructions a second (None: not measured).

    `reason` and `remedy` say what is wrong where it is not native.
    """

    usable: bool
    native: bool
    rate: float | None = None
    reason: str | None = None
    remedy: str | None = None


def native_kvm(device: Path = DEVICE) -> KvmFinding:
    """What KVM is here. Takes a few milliseconds the first time; a measured rate is remembered for the life of the process."""
    if not device.exists():
        remedy = "Use a machine with hardware virtualisation (or nested virtualisation switched on) and load kvm_intel or kvm_amd."
        return KvmFinding(usable=False, native=False, reason=f"there is no {device}.", remedy=remedy)
    if not os.access(device, os.R_OK | os.W_OK):
        remedy = f"Join its group: `usermod -aG kvm {os.environ.get('USER', 'USER')}`, then log in again."
        return KvmFinding(usable=False, native=False, reason=f"{device} may not be used by you.", remedy=remedy)
    try:
        rate = _rate(device)
    except OSError as error:
        told = f"{device} does not work: {error.strerror or error}."
        return KvmFinding(usable=False, native=False, reason=told, remedy="Look at `dmesg` for KVM's reason.")
    if rate is None or rate >= NATIVE_RATE:
        return KvmFinding(usable=True, native=True, rate=rate)
    return KvmFinding(
        usable=True,
        native=False,
        rate=rate,
        reason=f"{device} emulates its machines: {rate / 1e6:.2g} million instructions a second, and a processor runs hundreds.",
        remedy="Use a machine whose processor virtualises (bare metal, or nested virtualisation switched on).",
    )


@functools.cache
def _rate(device: Path) -> float | None:
    """Guest instructions a second; None on processors for which there is no loop. Raises OSError, which is not remembered."""
    with ExitStack() as held:
        kvm, machine = _make_machine(device, held)
        if platform.machine() != "x86_64":
            return None
        loop = _Loop.make(kvm, machine, held)
        loop.seconds(1)  # brings the page into the machine, and the monitor into the caches
        rate = loop.best_rate(_FEW_ROUNDS)
        # Coming into the machine and out again takes as long as thousands of instructions of a processor, so it is given more to do.
        return rate if rate < _PROMISING else loop.best_rate(_MANY_ROUNDS)


def _make_machine(device: Path, held: ExitStack) -> tuple[int, int]:
    kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    held.callback(os.close, kvm)
    version = fcntl.ioctl(kvm, _GET_API_VERSION, 0)
    if version != API_VERSION:
        raise OSError(errno.EPROTO, f"it speaks version {version} of its API, not {API_VERSION}")
    machine = fcntl.ioctl(kvm, _CREATE_VM, 0)
    held.callback(os.close, machine)
    return kvm, machine


@dataclass(frozen=True, slots=True)
class _Loop:
    """A processor in 32-bit protected mode, without paging, with a loop at address 0. `state` is its struct kvm_run."""

    processor: int
    state: mmap.mmap

    @classmethod
    def make(cls, kvm: int, machine: int, held: ExitStack) -> _Loop:
        memory = held.enter_context(_mapped(-1, _PAGE))
        memory[: len(_LOOP)] = _LOOP
        fcntl.ioctl(machine, _SET_TSS_ADDR, _TSS)
        fcntl.ioctl(machine, _SET_USER_MEMORY_REGION, struct.pack("<IIQQQ", 0, 0, 0, _PAGE, _address(memory)))
        processor = fcntl.ioctl(machine, _CREATE_VCPU, 0)
        held.callback(os.close, processor)
        state = held.enter_context(_mapped(processor, fcntl.ioctl(kvm, _GET_VCPU_MMAP_SIZE, 0)))
        _enter_protected_mode(processor)
        return cls(processor, state)

    def best_rate(self, rounds: int) -> float:
        """Instructions a second in the best of a few attempts, since any one may be interrupted by the host's other work."""
        return rounds * _LOOP_INSTRUCTIONS / min(self.seconds(rounds) for _ in range(_ATTEMPTS))

    def seconds(self, rounds: int) -> float:
        """How long `rounds` of the loop take. Raises OSError when the machine does not come to the end of it."""
        registers = [0] * _REGISTERS
        registers[_RCX], registers[_RIP], registers[_RFLAGS] = rounds, 0, 2
        fcntl.ioctl(self.processor, _SET_REGS, struct.pack(f"<{_REGISTERS}Q", *registers))
        since = perf_counter()
        fcntl.ioctl(self.processor, _RUN, 0)
        spent = perf_counter() - since
        reason = int.from_bytes(self.state[8:12], "little")
        if reason != _EXIT_HLT:
            raise OSError(errno.EIO, f"a machine of four instructions ended with KVM's exit reason {reason}")
        return spent


@contextmanager
def _mapped(descriptor: int, length: int) -> Iterator[mmap.mmap]:
    with mmap.mmap(descriptor, length) as memory:
        yield memory


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _enter_protected_mode(processor: int) -> None:
    system = bytearray(fcntl.ioctl(processor, _GET_SREGS, bytes(_SREGS_SIZE)))
    # Flat segments of 4 GiB: base, limit, selector; type, present, privilege, 32 bits, code or data, not 64 bits, in pages, available;
    # usable. The order in the structure: cs, ds, es, fs, gs, ss.
    for place, kind in enumerate((11, 3, 3, 3, 3, 3)):
        segment = _SEGMENT.pack(0, 0xFFFFFFFF, 8 if place == 0 else 16, kind, 1, 0, 1, 1, 0, 1, 0, 0)
        system[place * _SEGMENT.size : (place + 1) * _SEGMENT.size] = segment
    (cr0,) = struct.unpack_from("<Q", system, _CR0)
    struct.pack_into("<Q", system, _CR0, cr0 | 1)
    fcntl.ioctl(processor, _SET_SREGS, bytes(system))
