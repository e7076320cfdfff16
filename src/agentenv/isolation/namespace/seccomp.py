"""The system-call policy of `syscalls.py` as the program that the launcher loads into each sandbox.

libseccomp knows each call's number on this machine (a small ctypes binding of seccomp_syscall_resolve_name(3) and
seccomp_arch_native(3)); `bpf.py` assembles the program, once per owner process.
"""

from __future__ import annotations

import ctypes
import errno

from agentenv.errors import BackendUnavailable
from agentenv.isolation.namespace import syscalls
from agentenv.isolation.namespace.bpf import ALLOW, NoBitOf, OneOf, Verdict, assemble, refuse

LIBRARY = "libseccomp.so.2"
REMEDY = "Install it: `apt-get install libseccomp2` (Debian, Ubuntu), `dnf install libseccomp` (Fedora), `apk add libseccomp` (Alpine)."

_X86_64 = 0xC000003E  # AUDIT_ARCH_X86_64, whose second ABI x32 begins at the number below
_X32_FIRST = 0x40000000


def load_library() -> ctypes.CDLL:
    """libseccomp. Raises `BackendUnavailable` where it is missing."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise BackendUnavailable(f"{LIBRARY} cannot be loaded ({error}).", remedy=REMEDY) from error
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_arch_native.restype = ctypes.c_uint32
    return library


def policy(*, pin_cores: bool) -> dict[str, Verdict]:
    """The verdict for each call by name; what is not named answers ENOSYS."""
    denied = refuse(errno.EPERM)
    verdicts: dict[str, Verdict] = {**dict.fromkeys(syscalls.ALLOWED, ALLOW), **dict.fromkeys(syscalls.REFUSED, denied)}
    verdicts["sched_setaffinity"] = denied if pin_cores else ALLOW
    for name in ("clone", "unshare"):
        verdicts[name] = NoBitOf(0, syscalls.NEW_NAMESPACES, denied)
    verdicts["socket"] = OneOf(0, syscalls.ADDRESS_FAMILIES, refuse(errno.EAFNOSUPPORT))
    verdicts["personality"] = OneOf(0, syscalls.PERSONALITIES, denied)
    return verdicts


def compile_filter(*, pin_cores: bool = False) -> bytes:
    """The program as an array of `struct sock_filter`; with `pin_cores` a sandbox cannot change which cores it uses.

    Raises `BackendUnavailable` when libseccomp is missing.
    """
    library = load_library()
    numbered: dict[int, Verdict] = {}
    for name, verdict in policy(pin_cores=pin_cores).items():
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # negative: this machine or this libseccomp does not have it
            numbered[number] = verdict
    architecture = library.seccomp_arch_native()
    first_foreign = _X32_FIRST if architecture == _X86_64 else None
    return assemble(numbered, architecture=architecture, default=refuse(errno.ENOSYS), first_foreign=first_foreign)
