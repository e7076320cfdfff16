"""What an ordinary user does in a user namespace: mounts a machine's overlays and has runsc make it, where both are root's to do.

Run as a program, with the number of a descriptor from which `Order` is read. A process of its own, since one of several threads cannot
enter a user namespace. The only user in there is the caller, as root.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentenv.isolation.contract import Tree
from agentenv.isolation.gvisor import mounts

AS_ROOT = ("unshare", "--user", "--map-root-user")
"""How an ordinary user calls runsc on a machine that is there (unshare(1))."""


class Overlay(msgspec.Struct, frozen=True):
    """Where each part of one tree lies on the host."""

    target: str
    lowers: list[str]
    upper: str
    work: str
    mount_point: str


class Order(msgspec.Struct, frozen=True):
    """`covers` are files and what is shown in their place."""

    overlays: list[Overlay]
    covers: list[tuple[str, str]]
    cores: list[int]
    command: list[str]
    env: dict[str, str]


def descriptor_of(order: Order) -> int:
    """A descriptor to read it from, to be closed by the caller."""
    descriptor = os.memfd_create("agentenv-order", 0)
    os.write(descriptor, msgspec.msgpack.encode(order))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def program(descriptor: int) -> list[str]:
    """The command that carries out what is read from `descriptor`; its standard streams become those of the agent."""
    return [sys.executable, "-m", __name__, str(descriptor)]


def carry_out(order: Order) -> int:
    """Returns runsc's exit status. Raises OSError for what cannot be mounted."""
    user, group = os.geteuid(), os.getegid()
    mounts.enter_user_namespace()
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    mounts.enter_private_namespace()
    os.sched_setaffinity(0, order.cores)
    for one in order.overlays:
        tree = Tree(one.target, "", tuple(map(Path, one.lowers)))
        mounts.mount_overlay(tree, Path(one.upper), Path(one.work), Path(one.mount_point), ordinary=True)
    for target, shown in order.covers:
        mounts.cover(Path(target), Path(shown))
    os.chdir("/")
    return subprocess.run(order.command, env=order.env, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Says on standard error what failed, as runsc does."""
    with os.fdopen(int(arguments[0]), "rb") as file:
        order = msgspec.msgpack.decode(file.read(), type=Order)
    try:
        return carry_out(order)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
