"""One slot of the network: a network namespace with a veth pair to the host, made and unmade through batches of `ip`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.egress.rules import INTERFACE_PREFIX
from agentenv.egress.wall import Wall
from agentenv.node import commands, network_policy
from agentenv.node.waiting import in_thread

NETNS_DIRECTORY = Path("/run/netns")
"""Where `ip netns` keeps its names."""

_NAME = re.compile(r"agentenv-(?P<owner>.+)-(?P<index>[0-9a-f]+)")
_ALREADY_GONE = re.compile(r"Cannot find device|No such file or directory|^Command failed")


@dataclass(frozen=True, slots=True)
class NetworkSlot:
    """A prepared network of one sandbox: the namespace to put it in, its address there, its way out and whom to ask for names."""

    netns: Path
    address: str
    gateway: str
    nameservers: tuple[str, ...]
    index: int
    wall: Wall = field(compare=False)

    @property
    def interface(self) -> str:
        """The host's end of the link."""
        return interface_name(self.index)


def interface_name(index: int) -> str:
    """At most 15 characters, as the kernel demands."""
    return f"{INTERFACE_PREFIX}{index:x}"


def netns_name(owner: str, index: int) -> str:
    """The name under /run/netns from which `owned_names` finds the owner again."""
    return f"agentenv-{owner}-{index:x}"


def owned_names() -> dict[str, list[str]]:
    """Every namespace of ours on this machine, grouped by owner."""
    owners: dict[str, list[str]] = {}
    if NETNS_DIRECTORY.is_dir():
        for path in NETNS_DIRECTORY.iterdir():
            if match := _NAME.fullmatch(path.name):
                owners.setdefault(match["owner"], []).append(path.name)
    return owners


def interfaces_of(names: Iterable[str]) -> list[str]:
    """The host's ends of the links of the namespaces `names`."""
    return [interface_name(int(match["index"], 16)) for name in names if (match := _NAME.fullmatch(name))]


async def create(
    owner: str, index: int, slot_range: network_policy.Network4, nameservers: tuple[str, ...], mtu: int, inhabitant: int | None = None
) -> NetworkSlot:
    """Makes slot `index`; on any failure nothing of it is left.

    With `inhabitant`, the number of a process, it is made around the network namespace that this one lives in, which has a loopback
    only, and nothing passes before `connect`.

    The kernel hands out each interface name once, so it decides between owners that try for the same index: the loser gets
    `commands.CommandFailed` with "File exists".
    """
    name, interface, ends = netns_name(owner, index), interface_name(index), network_policy.addresses(slot_range, index)
    outside = (
        f"netns add {name}" if inhabitant is None else f"netns attach {name} {inhabitant}",
        f"link add {interface} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {name}",
        f"addr add {ends.gateway}/{ends.prefix_length} dev {interface}",
        *((f"link set {interface} up",) if inhabitant is None else ()),
    )
    inside = (
        "link set lo up",
        f"addr add {ends.address}/{ends.prefix_length} dev eth0",
        "link set eth0 up",
        f"route add default via {ends.gateway}",
    )
    built: list[Wall] = []
    made = False
    try:
        await _batch(outside)
        await _batch(inside, netns=name)
        netns = NETNS_DIRECTORY / name
        await in_thread(lambda: built.append(Wall.build(netns, nameservers)), lambda: None)
        made = True
    finally:
        if not made:
            # By its other end: if the interface's name was taken, that one is another's. The namespace alone would take it along a moment
            # later, or, where somebody lives in it, not at all.
            await _batch(("link del eth0",), netns=name, force=True)
            await _batch((f"netns del {name}",), force=True)
            for wall in built:
                wall.close()
    return NetworkSlot(netns, ends.address, ends.gateway, nameservers, index, built[0])


async def connect(slot: NetworkSlot) -> None:
    """Lets packets pass through a slot that was made around a process. Raises `InfrastructureError`."""
    await _batch((f"link set {slot.interface} up",))


async def destroy(slots: Iterable[NetworkSlot]) -> None:
    """Removes slots of ours, their links first, so that a process still inside is cut off at once. What is gone is no error."""
    known = list(slots)
    await _remove([line for slot in known for line in (f"link del {slot.interface}", f"netns del {slot.netns.name}")])
    for slot in known:
        slot.wall.close()


async def destroy_namespaces(names: Iterable[str]) -> None:
    """Removes namespaces by name, and with each the link whose inner end it holds.

    For slots of others: one that died half-way through `create` may have a namespace whose index is another's interface.
    """
    await _remove([f"netns del {name}" for name in names])


async def _remove(lines: list[str]) -> None:
    if not lines:
        return
    output = await _batch(lines, force=True)
    serious = [line for line in output.complaints.splitlines() if not _ALREADY_GONE.search(line)]
    if serious:
        raise commands.CommandFailed(("ip", "-force", "-batch", "-"), output.status, "; ".join(serious))


async def _batch(lines: Iterable[str], *, netns: str | None = None, force: bool = False) -> commands.Output:
    """`force` goes on after a line that fails, and leaves the judgement to the caller."""
    options = (*(("-n", netns) if netns else ()), *(("-force",) if force else ()))
    return await commands.run("ip", *options, "-batch", "-", text="\n".join(lines) + "\n", check=not force)


async def host_routes() -> list[str]:
    """CIDR texts of the host's IPv4 routes, without those of our own links."""
    return list(_routes(json.loads((await commands.run("ip", "-4", "-j", "route", "show", "table", "all")).text or "[]")))


def _routes(entries: Iterable[dict[str, object]]) -> Iterator[str]:
    for entry in entries:
        destination, device = entry.get("dst"), str(entry.get("dev", ""))
        if isinstance(destination, str) and destination != "default" and not device.startswith(INTERFACE_PREFIX):
            yield destination


async def route_mtu() -> int:
    """The MTU (bytes) of the interface that the default route leaves by; 1500 without one."""
    routes = json.loads((await commands.run("ip", "-4", "-j", "route", "show", "default")).text or "[]")
    device = next((route["dev"] for route in routes if "dev" in route), None)
    if device is None:
        return 1500
    (link,) = json.loads((await commands.run("ip", "-j", "link", "show", "dev", device)).text)
    return int(link["mtu"])
