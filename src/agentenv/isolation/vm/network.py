"""A virtual machine's way into its slot of the network: a tap in the slot's namespace, the same in every slot.

Inside a machine everything about its network is constant, so that one restored in another slot finds what it had: its address, its
gateway, that gateway's hardware address. The slot's namespace routes and translates between the tap and the slot's own link, whose other
end is where the node's policy stands, as for every sandbox.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from agentenv.egress import nftables
from agentenv.egress.netns import inside
from agentenv.isolation.contract import Network
from agentenv.isolation.vm.cmdline import GuestNetwork

TAP = "tap0"
GUEST_MAC = "02:ae:00:00:00:02"
GUEST_ADDRESS = "192.0.0.2"
_TAP_MAC = bytes.fromhex("02ae00000001")
_TAP_ADDRESS = "192.0.0.1"
_NETMASK = "255.255.255.252"
"""192.0.0.0/29 is set aside for translators inside one host (RFC 7335), so it names nothing that a machine could want to reach."""

_SLOT_INTERFACE = "eth0"
_LARGEST_MTU = 1500
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")

# linux/if_tun.h, linux/sockios.h
_TUNSETIFF, _TUNSETPERSIST, _TUNSETOWNER = 0x400454CA, 0x400454CB, 0x400454CC
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCGIFMTU, _SIOCSIFMTU, _SIOCSIFHWADDR = 0x8914, 0x8916, 0x891C, 0x8921, 0x8922, 0x8924
_IFF_UP, _ARPHRD_ETHER = 0x0001, 1


@dataclass(frozen=True, slots=True)
class GuestLink:
    """What a driver attaches: the `tap` in the namespace `netns`, the guest's `mac`, the `mtu` in bytes, and what the guest is told."""

    netns: Path
    guest: GuestNetwork
    mtu: int
    tap: str = TAP
    mac: str = GUEST_MAC

    def open(self, *, headers: bool = True) -> int:
        """A descriptor of the tap, with virtio `headers` for a monitor (QEMU's `-netdev tap,fd=`); its holder need not enter `netns`."""
        return inside(self.netns, lambda: open_tap(self.tap, headers=headers))


def connect_guest(network: Network, *, owner: int | None = None, largest_mtu: int = _LARGEST_MTU) -> GuestLink:
    """Puts the tap into the slot of an enabled `network`, for a guest that starts or is restored there. Blocks for about 2 ms.

    `owner` is the user id that may open it (the jailer's); by default only root may. The slot's MTU holds up to `largest_mtu` bytes.
    It all goes with the namespace; made a second time it is as it was. Raises `OSError` or `InfrastructureError` where the kernel has no
    tun device or no packet rules.
    """
    if network.netns is None or network.address is None:
        raise ValueError("a guest is connected to an enabled network")
    address = network.address
    mtu = inside(network.netns, lambda: _connect(address, owner, largest_mtu))
    return GuestLink(network.netns, GuestNetwork(f"{GUEST_ADDRESS}/30", _TAP_ADDRESS, network.nameservers), mtu)


def _connect(slot_address: str, owner: int | None, largest_mtu: int) -> int:
    # The rules first: nothing passes before they stand.
    nftables.apply(_rules(slot_address))
    tap = open_tap(TAP)
    try:
        if owner is not None:
            fcntl.ioctl(tap, _TUNSETOWNER, owner)
        fcntl.ioctl(tap, _TUNSETPERSIST, 1)
    finally:
        os.close(tap)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        (slot_mtu,) = struct.unpack_from("i", fcntl.ioctl(control, _SIOCGIFMTU, struct.pack("16s24x", _SLOT_INTERFACE.encode())), 16)
        mtu = min(int(slot_mtu), largest_mtu)
        fcntl.ioctl(control, _SIOCSIFHWADDR, struct.pack("16sH6s16x", TAP.encode(), _ARPHRD_ETHER, _TAP_MAC))
        fcntl.ioctl(control, _SIOCSIFADDR, _with_address(_TAP_ADDRESS))
        fcntl.ioctl(control, _SIOCSIFNETMASK, _with_address(_NETMASK))
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", TAP.encode(), mtu))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", TAP.encode(), _IFF_UP))
    _FORWARDING.write_text("1")
    return mtu


def open_tap(name: str, *, headers: bool = True) -> int:
    """A descriptor of the tap `name` of the present namespace, made where there is none. Raises `OSError`."""
    flags = _IFF_TAP | _IFF_NO_PI | (_IFF_VNET_HDR if headers else 0)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _with_address(address: str) -> bytes:
    return struct.pack("16sH2x4s16x", TAP.encode(), socket.AF_INET, socket.inet_aton(address))


def _rules(slot_address: str) -> str:
    """A guest sends under its own address only, goes out under the slot's, and gets nothing from the namespace itself.

    Segments are cut to what the way out carries, since not every monitor can tell a guest of an MTU below 1500. Where it may go is a
    matter of the wall that stands in every slot (`agentenv.egress.wall`).
    """
    return f"""\
add table inet agentenv_guest
flush table inet agentenv_guest
table inet agentenv_guest {{
  chain forward {{
    type filter hook forward priority filter; policy accept;
    meta nfproto ipv6 drop
    iifname "{TAP}" ip saddr != {GUEST_ADDRESS} drop
    tcp flags syn tcp option maxseg size set rt mtu
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname "{TAP}" meta l4proto tcp reject with tcp reset
    iifname "{TAP}" drop
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "{_SLOT_INTERFACE}" ip saddr {GUEST_ADDRESS} snat ip to {slot_address}
  }}
}}
"""
