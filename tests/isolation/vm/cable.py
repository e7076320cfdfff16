"""A network namespace in a guest's place: its own interface is joined to a tap as if a monitor stood between them."""

from __future__ import annotations

import os
import selectors
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentenv.egress.netns import inside
from agentenv.isolation.vm.network import GuestLink, open_tap

LONGEST_FRAME = 1 << 17


@contextmanager
def plugged_in(link: GuestLink) -> Iterator[Path]:
    """The path of a namespace that has of the network exactly what a guest on `link` has."""
    name = f"aevguest-{uuid.uuid4().hex[:8]}"
    netns = Path("/run/netns", name)
    subprocess.run(["ip", "netns", "add", name], check=True)
    ends = [link.open()]
    try:
        ends.append(inside(netns, lambda: open_tap("eth0")))
        setup = [
            "link set lo up",
            f"link set eth0 address {link.mac} mtu {link.mtu} up",
            f"addr add {link.guest.address} dev eth0",
            f"route add default via {link.guest.gateway}",
        ]
        subprocess.run(["ip", "-n", name, "-batch", "-"], input="\n".join(setup), text=True, check=True)
        with _pumped(*ends):
            yield netns
    finally:
        for end in ends:
            os.close(end)
        subprocess.run(["ip", "netns", "del", name], check=True)


@contextmanager
def _pumped(first: int, second: int) -> Iterator[None]:
    stop, stopper = os.pipe()
    thread = threading.Thread(target=_pump, args=(first, second, stop))
    thread.start()
    try:
        yield
    finally:
        os.close(stopper)
        thread.join()
        os.close(stop)


def _pump(first: int, second: int, stop: int) -> None:
    with selectors.DefaultSelector() as found:
        found.register(first, selectors.EVENT_READ, second)
        found.register(second, selectors.EVENT_READ, first)
        found.register(stop, selectors.EVENT_READ)
        while True:
            for key, _ in found.select():
                if key.fd == stop:
                    return
                os.write(key.data, os.read(key.fd, LONGEST_FRAME))
