"""Mounts for one machine, in a mount namespace of the calling thread's own: nobody else sees them, and they end with their last user.

By the kernel's new mount API (fsopen(2), fsconfig(2)), since the string of mount(2) holds about fifty layers at most.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import ExitStack
from pathlib import Path

from agentenv.isolation.contract import Tree

_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432  # the same on every architecture
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_FROM_EMPTY_PATH = 4
_NOSUID_NODEV = 2 | 4
_NEW_NAMESPACE, _OWN_DIRECTORY, _NEW_USERS = 0x00020000, 0x00000200, 0x10000000  # CLONE_NEWNS, CLONE_FS, CLONE_NEWUSER
_MS_BIND, _MS_REC, _MS_SLAVE = 0x1000, 0x4000, 1 << 19
_AT_FDCWD = -100
_OLD_STRING_MAX = 255

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def enter_private_namespace() -> None:
    """The calling thread, for the rest of its life, gets mounts and a working directory of its own. Raises OSError."""
    _check(_libc.unshare(_NEW_NAMESPACE | _OWN_DIRECTORY), "making a mount namespace")
    # What the host mounts later still appears here, and nothing from here there.
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "making mounts private")


def enter_user_namespace() -> None:
    """The process, which must have one thread only, may do in a namespace of its own what root may. Raises OSError."""
    _check(_libc.unshare(_NEW_USERS), "making a user namespace")


def cover(target: Path, file: Path) -> None:
    """Shows `file` in the place of `target`: both are files, or directories."""
    _check(_libc.mount(os.fsencode(file), os.fsencode(target), None, _MS_BIND, None), f"covering {target}")


def mount_overlay(tree: Tree, upper: Path, work: Path, target: Path, *, ordinary: bool = False) -> None:
    """Mounts a tree at `target`, without devices or set-uid powers on the host. Changes the working directory. Raises OSError.

    `ordinary`: for a user who is root in a user namespace only, and whose overlays keep their notes in other attributes.
    """
    what = f"mounting the overlay of {tree.target}"
    with ExitStack() as held:
        context = _overlay_context(held, ordinary)
        try:
            _name_by_standing(context, tree, upper, work)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            context = _overlay_context(held, ordinary)
            _name_by_descriptor(context, held, tree, upper, work)
        _check(_syscall(_FSCONFIG, context, _CREATE, None, None, 0), what)
        mount = _check(_syscall(_FSMOUNT, context, _CLOEXEC, _NOSUID_NODEV), what)
        held.callback(os.close, mount)
        _check(_syscall(_MOVE_MOUNT, mount, b"", _AT_FDCWD, os.fsencode(target), _FROM_EMPTY_PATH), what)


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return int(_libc.syscall(number, *wide))


def _overlay_context(held: ExitStack, ordinary: bool) -> int:
    context = _check(_syscall(_FSOPEN, b"overlay", _CLOEXEC), "opening an overlay")
    held.callback(os.close, context)
    # Nothing written in a sandbox outlives a crash of the machine, so nothing waits for the disk. Older kernels lack the option.
    _syscall(_FSCONFIG, context, _SET_FLAG, b"volatile", None, 0)
    if ordinary:
        _check(_syscall(_FSCONFIG, context, _SET_FLAG, b"userxattr", None, 0), "an overlay of an ordinary user")
    return context


def _set(context: int, key: bytes, value: bytes, what: object) -> None:
    _check(_syscall(_FSCONFIG, context, _SET_STRING, key, value, 0), f"adding {what} to an overlay")


def _name_by_standing(context: int, tree: Tree, upper: Path, work: Path) -> None:
    """Stands in each directory in turn and names it ".": kernels from 6.8 on, which look a layer up at once and know `lowerdir+`."""
    for lower in tree.lowers:
        os.chdir(lower)
        _set(context, b"lowerdir+", b".", lower)
    for key, directory in ((b"upperdir", upper), (b"workdir", work)):
        os.chdir(directory)
        _set(context, key, b".", directory)


def _name_by_descriptor(context: int, held: ExitStack, tree: Tree, upper: Path, work: Path) -> None:
    """Older kernels take one string of at most 255 bytes and look it up at the end: stand in /proc/thread-self/fd and name descriptors."""

    def hold(directory: Path) -> bytes:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        held.callback(os.close, descriptor)
        return str(descriptor).encode()

    lowers = b":".join(hold(lower) for lower in tree.lowers)
    if len(lowers) > _OLD_STRING_MAX:
        raise OSError(errno.E2BIG, f"{len(tree.lowers)} layers are more than this kernel takes (Linux 6.8 takes 500)")
    named = ((b"upperdir", hold(upper)), (b"workdir", hold(work)), (b"lowerdir", lowers))
    os.chdir("/proc/thread-self/fd")
    for key, value in named:
        _set(context, key, value, key.decode())
