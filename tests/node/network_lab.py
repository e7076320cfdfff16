"""A host of its own for network tests: a network namespace with a loopback, an uplink, and behind that "the internet" as another namespace.

Nothing touches the machine's own interfaces, rules or forwarding: a scenario runs in a thread that has entered the namespace, and the
processes that it starts inherit it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentenv.node.network_host import NetworkHost
from agentenv.node.network_policy import host_nameservers

CLONE_NEWNET = 0x40000000
HOST = "192.0.2.2"
PUBLIC = "203.0.113.5"
PRIVATE = "10.9.9.9"
METADATA = "169.254.169.254"
PORT = 7777
_RUN = uuid.uuid4().hex[:6]
"""In the names of all owners of this process: others may run the same tests on this machine."""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("nft") is None or shutil.which("ip") is None, reason="networks need root, iproute2 and nftables"
)

_SERVER = f"""
import selectors, socket, sys
found = selectors.DefaultSelector()
streams = [("::", port, socket.SOCK_STREAM) for port in ({PORT}, 53)]
for address, port, kind in streams + [("::ffff:" + address, 53, socket.SOCK_DGRAM) for address in sys.argv[1:]]:
    s = socket.socket(socket.AF_INET6, kind)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    if kind == socket.SOCK_STREAM: s.listen(64)
    found.register(s, selectors.EVENT_READ)
print("up", flush=True)
while True:
    for key, _ in found.select():
        if key.fileobj.type == socket.SOCK_DGRAM:
            data, peer = key.fileobj.recvfrom(100)
            key.fileobj.sendto(peer[0].encode(), peer)
        else:
            c, peer = key.fileobj.accept()
            c.sendall(peer[0].encode())
            c.close()
"""
"""Answers every connection, and on port 53 every datagram to the addresses it is given, with the address that it came from."""

_ASK = """
import errno, socket, sys
address, port, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
s.settimeout(1)
try:
    s.connect((address, port))
    s.send(b"?")
    print("reached from", s.recv(100).decode().removeprefix("::ffff:"))
except TimeoutError:
    print("silence")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@dataclass
class Lab:
    """Handed to a scenario: where it may keep state, and ways to look and to ask."""

    directory: Path
    internet: str

    @property
    def host(self) -> NetworkHost:
        return NetworkHost(self.directory / "state")

    def ask(self, netns: Path, address: str, port: int = PORT, kind: str = "tcp") -> str:
        """Connects from inside `netns`: "reached from ADDRESS", "silence", or the name of the error."""
        command = ["nsenter", f"--net={netns}", sys.executable, "-S", "-c", _ASK, address, str(port), kind]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def serve(self, netns: Path | None = None, *datagrams: str) -> subprocess.Popen[str]:
        """Starts the answering server in `netns`, or on the lab's host."""
        enter = ["nsenter", f"--net={netns}"] if netns else []
        return self.start(*enter, sys.executable, "-S", "-c", _SERVER, *datagrams)

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Starts a program on the lab's host and returns when it has printed "up"."""
        program = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        return program

    def forward(self, on: bool) -> None:
        """Lets the lab's host forward packets, or not."""
        Path("/proc/sys/net/ipv4/ip_forward").write_text(str(int(on)))

    def wait_for_links_to_go(self) -> None:
        """The kernel takes a namespace's links away some time after its last name."""
        deadline = time.monotonic() + 30
        while "links" in self.leftovers() and time.monotonic() < deadline:
            time.sleep(0.01)

    def tell(self, *argv: str) -> str:
        """Runs a tool on the lab's host and returns what it prints."""
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def leftovers(self) -> dict[str, str]:
        """What a pool might have left on the lab's host: empty when it left nothing."""
        names = [path.name for path in Path("/run/netns").iterdir() if path.name.startswith(f"agentenv-lab{_RUN}")]
        links = [line for line in self.tell("ip", "-br", "link").splitlines() if line.startswith("aev")]
        found = {
            "namespaces": " ".join(names),
            "links": " ".join(links),
            "rules": self.tell("nft", "list", "tables"),
            "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text().strip().replace("0", ""),
            "pools": " ".join(path.name for path in (self.directory / "state").glob("pools/*")),
        }
        return {kind: text for kind, text in found.items() if text}


def owner() -> str:
    return f"lab{_RUN}{uuid.uuid4().hex[:6]}"


def run(directory: Path, scenario: Callable[[Lab], Awaitable[None]]) -> None:
    """Runs `scenario` on a fresh host; what it raises is raised here."""
    failures: list[BaseException] = []
    thread = threading.Thread(target=_body, args=(directory, scenario, failures))
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _body(directory: Path, scenario: Callable[[Lab], Awaitable[None]], failures: list[BaseException]) -> None:
    lab = Lab(directory, f"aevlab-{uuid.uuid4().hex[:8]}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        failures.append(OSError(ctypes.get_errno(), "unshare"))
        return
    subprocess.run(["ip", "netns", "add", lab.internet], check=True)
    server = None
    try:
        _wire(lab)
        server = lab.serve(Path("/run/netns", lab.internet), PUBLIC, PRIVATE, METADATA, *host_nameservers())
        asyncio.run(scenario(lab))  # type: ignore[arg-type]
    except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for this one
        failures.append(error)
    finally:
        if server is not None:
            server.kill()
            server.communicate()
        subprocess.run(["ip", "netns", "del", lab.internet], check=True)


def _wire(lab: Lab) -> None:
    # A new namespace copies this from the machine's own.
    lab.forward(False)
    nameservers = host_nameservers()
    outside = [
        "link set lo up",
        f"link add wan type veth peer name eth0 netns {lab.internet}",
        f"addr add {HOST}/24 dev wan",
        "link set wan up",
    ]
    inside = ["link set lo up", "link set eth0 up", "addr add 192.0.2.1/24 dev eth0"]
    inside += [f"addr add {address}/32 dev lo" for address in (PUBLIC, PRIVATE, METADATA, *nameservers)]
    for options, lines in (([], outside), (["-n", lab.internet], inside), ([], ["route add default via 192.0.2.1"])):
        subprocess.run(["ip", *options, "-batch", "-"], input="\n".join(lines), text=True, check=True)
