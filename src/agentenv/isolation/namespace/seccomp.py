"""Compiles the system-call policy of `syscalls.py` with libseccomp into the program that the launcher loads into each sandbox.

A small ctypes binding of libseccomp.so.2 (seccomp_init(3) and its neighbours); the program is compiled once per owner process.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from agentenv.errors import BackendUnavailable
from agentenv.isolation.namespace import syscalls

LIBRARY = "libseccomp.so.2"
REMEDY = "Install it: `apt-get install libseccomp2` (Debian, Ubuntu), `dnf install libseccomp` (Fedora), `apk add libseccomp` (Alpine)."

_ALLOW = 0x7FFF0000
_OPTIMIZE = 8  # SCMP_FLTATR_CTL_OPTIMIZE; 2 sorts the calls into a binary tree
_EQUAL, _GREATER, _MASKED_EQUAL = 4, 6, 7  # SCMP_CMP_EQ, SCMP_CMP_GT, SCMP_CMP_MASKED_EQ


def _errno(number: int) -> int:
    return 0x00050000 | number  # SCMP_ACT_ERRNO


class _Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp`: compares one argument of a call."""

    _fields_ = (("argument", ctypes.c_uint), ("operator", ctypes.c_int), ("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


class _Filter:
    """One filter under construction; what is in no rule answers ENOSYS."""

    def __init__(self, library: ctypes.CDLL, context: int) -> None:
        self._library = library
        self._context = ctypes.c_void_p(context)

    def rule(self, action: int, name: str, *comparisons: tuple[int, int, int, int]) -> None:
        """Adds a rule for one call, unless this machine does not have it."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return
        array = (_Comparison * max(1, len(comparisons)))(*(_Comparison(*comparison) for comparison in comparisons))
        status = self._library.seccomp_rule_add_array(self._context, ctypes.c_uint32(action), number, len(comparisons), array)
        if status != 0:
            raise BackendUnavailable(f"libseccomp refused the rule for {name}: {os.strerror(-status)}.")

    def export(self) -> bytes:
        """The finished program: an array of `struct sock_filter`."""
        with os.fdopen(os.memfd_create("agentenv-seccomp"), "rb") as file:
            status = self._library.seccomp_export_bpf(self._context, file.fileno())
            if status != 0:
                raise BackendUnavailable(f"libseccomp cannot export the filter: {os.strerror(-status)}.")
            file.seek(0)
            return file.read()


def load_library() -> ctypes.CDLL:
    """libseccomp with its functions' types declared. Raises `BackendUnavailable` where it is missing."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise BackendUnavailable(f"{LIBRARY} cannot be loaded ({error}).", remedy=REMEDY) from error
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    library.seccomp_rule_add_array.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library


@contextmanager
def _filter(library: ctypes.CDLL) -> Iterator[_Filter]:
    context = library.seccomp_init(_errno(errno.ENOSYS))
    if not context:
        raise BackendUnavailable("libseccomp cannot make a filter on this machine.")
    try:
        library.seccomp_attr_set(context, _OPTIMIZE, 2)  # libseccomp before 2.5 has no such attribute: a linear filter is as right
        yield _Filter(library, context)
    finally:
        library.seccomp_release(context)


def _add_policy(filter_: _Filter, *, pin_cores: bool) -> None:
    for name in syscalls.ALLOWED:
        filter_.rule(_ALLOW, name)
    for name in syscalls.REFUSED:
        filter_.rule(_errno(errno.EPERM), name)
    filter_.rule(_errno(errno.EPERM) if pin_cores else _ALLOW, "sched_setaffinity")
    for name in ("clone", "unshare"):
        filter_.rule(_ALLOW, name, (0, _MASKED_EQUAL, syscalls.NEW_NAMESPACES, 0))
        for bit in (1 << position for position in range(32)):
            if bit & syscalls.NEW_NAMESPACES:
                filter_.rule(_errno(errno.EPERM), name, (0, _MASKED_EQUAL, bit, bit))
    for family in range(syscalls.ADDRESS_FAMILIES[-1] + 1):
        action = _ALLOW if family in syscalls.ADDRESS_FAMILIES else _errno(errno.EAFNOSUPPORT)
        filter_.rule(action, "socket", (0, _EQUAL, family, 0))
    filter_.rule(_errno(errno.EAFNOSUPPORT), "socket", (0, _GREATER, syscalls.ADDRESS_FAMILIES[-1], 0))
    for value in syscalls.PERSONALITIES:
        filter_.rule(_ALLOW, "personality", (0, _EQUAL, value, 0))


def compile_filter(*, pin_cores: bool = False) -> bytes:
    """The program as an array of `struct sock_filter`; with `pin_cores` a sandbox cannot change which cores it uses.

    Raises `BackendUnavailable` when libseccomp is missing or does not know this machine.
    """
    with _filter(load_library()) as filter_:
        _add_policy(filter_, pin_cores=pin_cores)
        return filter_.export()
