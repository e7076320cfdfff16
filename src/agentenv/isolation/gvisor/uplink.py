"""A sandbox's way into its slot of the network, which its kernel knows nothing of.

That kernel runs without a network, since only so can it be written down. The agent makes an interface inside, and carries its frames to and
from a tap of the host's that it is given as its standard output. The tap stands in the slot's namespace like a virtual machine's, so that
the same rules judge what passes, and the same addresses hold inside of every sandbox.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

from agentenv.isolation.contract import Network
from agentenv.isolation.namespace.agent_call import call
from agentenv.isolation.vm.network import GUEST_ADDRESS, GuestLink, connect_guest

_FRAME_HEADER = 14
_LARGEST_MTU = 1500 - _FRAME_HEADER
"""gVisor takes frames of 1500 bytes from a tap, their header among them."""

_ANSWER_SECONDS = 10.0
_NEW_NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET, linux/sched.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8913, 0x8914, 0x8916, 0x891C  # linux/sockios.h
_IFF_UP = 0x0001

OWN_NAMESPACE = "/proc/self/ns/net"
"""For runsc, which a thread starts that has called `enter_waiting_room`."""

ROOT_ONLY = Path("/proc/sys/net/core")
"""Once it was only seen outside of network namespaces, and runsc still takes one in which it is seen for the machine's own."""


@dataclass(slots=True)
class Uplink:
    """What one machine is given: the tap, which is closed here when runsc has it."""

    link: GuestLink
    descriptor: int

    @classmethod
    def open(cls, network: Network) -> Uplink:
        """Puts a tap into the slot of an enabled `network`. Blocks for about 2 ms; raises `OSError`, `InfrastructureError`."""
        link = connect_guest(network, largest_mtu=_LARGEST_MTU)
        return cls(link, link.open(headers=False))

    def close(self) -> None:
        """Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


def bring_up(agent: socket.socket, link: GuestLink) -> None:
    """Has the agent make its interface, or open the way out again. In a copy of another machine its connections to the outside end.

    Blocks; takes over the connection. Raises `InfrastructureError`.
    """
    interface = ipaddress.IPv4Interface(link.guest.address)
    call(
        agent,
        "network",
        timeout=_ANSWER_SECONDS,
        up=True,
        address=str(interface.ip),
        prefix=interface.network.prefixlen,
        gateway=link.guest.gateway,
        mac=link.mac,
        mtu=link.mtu,
    )


def take_down(agent: socket.socket) -> None:
    """Has the agent close the way out, without which the machine can be written down; connections go on when it is opened again.

    Blocks; takes over the connection. Raises `InfrastructureError`.
    """
    call(agent, "network", timeout=_ANSWER_SECONDS, up=False)


def enter_waiting_room() -> None:
    """The calling thread, for the rest of its life, is in a network namespace whose loopback is all the world to a restored machine.

    gVisor gives up restoring a socket whose address or way is not there, and the way that the agent makes is not there yet. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK_NAMESPACE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"making a network namespace: {os.strerror(number)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))
        fcntl.ioctl(control, _SIOCSIFADDR, _with_address(GUEST_ADDRESS))
        fcntl.ioctl(control, _SIOCSIFNETMASK, _with_address("0.0.0.0"))


def _with_address(address: str) -> bytes:
    return struct.pack("16sH2x4s16x", b"lo:1", socket.AF_INET, socket.inet_aton(address))
