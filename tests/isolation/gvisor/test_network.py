"""Networks: a way out that closes while a machine stands still, and is another one in each machine that goes on from memory."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.isolation.gvisor.sandboxes import NOTHING, GvisorYard
from tests.isolation.sandboxes import shell

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.guest import Command, Connection
from agentenv.guest.native import binary
from agentenv.guest.processes import start as start_process
from agentenv.isolation.contract import Network
from agentenv.isolation.gvisor import backend as backend_module
from agentenv.isolation.gvisor.checkpoint import read_facts, write_facts
from agentenv.isolation.gvisor.machine import GvisorMachine
from agentenv.isolation.gvisor.trunk import Carried
from agentenv.isolation.gvisor.uplink import Uplink
from agentenv.isolation.vm.network import GUEST_ADDRESS

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="networks need root and iproute2")

SERVER, PORT = "10.88.0.1", 7000
ECHO = f"""
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(self.client_address[0].encode() + b" " + line)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True
with Server(("{SERVER}", {PORT}), Echo) as server:
    print("up", flush=True)
    server.serve_forever()
"""

RESIDENT = f"""
import os, socket, threading
outside = socket.create_connection(("{SERVER}", {PORT}), 10)
listener = socket.create_server(("127.0.0.1", 0))
near, far = socket.create_connection(listener.getsockname()), listener.accept()[0]
bound = socket.create_server(("{GUEST_ADDRESS}", 6000))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.connect(("{SERVER}", 53))
half = socket.create_connection(("{SERVER}", {PORT}), 10)
half.shutdown(socket.SHUT_WR)
half.recv(1)
half.close()
waiting = socket.create_connection(("{SERVER}", {PORT}), 10)
def wait():
    try:
        told = repr(waiting.recv(100))
    except OSError as error:
        told = type(error).__name__
    open("/tmp/waited", "w").write(told)
threading.Thread(target=wait, daemon=True).start()
def ask(way, answers):
    try:
        way.settimeout(10)
        way.sendall(b"hello" + bytes([10]))
        return answers.recv(100).decode().strip()
    except OSError as error:
        return type(error).__name__
os.mkfifo("/tmp/ask")
open("/tmp/ready", "w").close()
while True:
    open("/tmp/ask").read()
    anew = socket.create_connection(("{SERVER}", {PORT}), 10)
    told = [ask(outside, outside), ask(near, far), ask(anew, anew)]
    open("/tmp/told.new", "w").write(" | ".join(told))
    os.rename("/tmp/told.new", "/tmp/told")
"""
"""Holds connections of every kind: to the outside, one of them read by a thread; within itself; one that is over for its program only."""


@dataclass(frozen=True)
class Place:
    """Slots as the node's pool makes them, without its rules: namespaces that lead to a server."""

    name: str

    def slot(self, number: int) -> Network:
        """What a machine is given."""
        slot = f"{self.name}s{number}"
        address = f"10.88.{number}.2"
        outside = [f"link add v{number} type veth peer name eth0 netns {slot}", f"addr add 10.88.{number}.1/30 dev v{number}"]
        inside = ["link set lo up", f"addr add {address}/30 dev eth0", "link set eth0 up", f"route add default via 10.88.{number}.1"]
        _ip("netns", "add", slot)
        _ip("-n", self.name, "-batch", "-", lines=[*outside, f"link set v{number} up"])
        _ip("-n", slot, "-batch", "-", lines=inside)
        return Network(enabled=True, netns=Path("/run/netns", slot), address=address)


def _ip(*words: str, lines: list[str] | None = None) -> None:
    subprocess.run(["ip", *words], input="\n".join(lines) if lines else None, text=True, check=True)


@pytest.fixture
def place() -> Iterator[Place]:
    name = f"gv{uuid.uuid4().hex[:8]}"
    _ip("netns", "add", name)
    _ip("-n", name, "-batch", "-", lines=["link set lo up", f"addr add {SERVER}/32 dev lo"])
    server = subprocess.Popen(["nsenter", f"--net=/run/netns/{name}", sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"up\n"
    yield Place(name)
    server.kill()
    server.communicate()
    for path in Path("/run/netns").glob(f"{name}*"):
        _ip("netns", "del", path.name)


async def resident(machine: GvisorMachine) -> Connection:
    """Starts the program that holds connections; it lasts as long as the connection, or is kept in children."""
    agent = Connection.open(machine.dial())
    start_process(agent, Command(argv=("/usr/bin/python3", "-c", RESIDENT), keep=True))
    await shell(machine, "while [ ! -e /tmp/ready ]; do sleep 0.01; done")
    return agent


async def asked(machine: GvisorMachine) -> list[str]:
    """What comes of a line on the connection to the outside, on the one within, and on a new one."""
    told = await shell(machine, "rm -f /tmp/told; echo >/tmp/ask; while [ ! -e /tmp/told ]; do sleep 0.01; done; cat /tmp/told")
    return told.split(" | ")


async def test_connections_go_on_in_the_parent_and_end_in_children(yard: GvisorYard, place: Place) -> None:
    parent = await yard.backend.start(yard.spec(network=place.slot(1)))
    assert [stage.name for stage in parent.stages] == ["prepare", "cgroup", "network", "launch", "agent"]
    agent = await resident(parent)
    assert await asked(parent) == ["10.88.1.2 hello", "hello", "10.88.1.2 hello"]
    await parent.pause()
    checkpoint = await yard.checkpoint(parent)
    await parent.resume()
    assert await asked(parent) == ["10.88.1.2 hello", "hello", "10.88.1.2 hello"]
    children = await asyncio.gather(*(yard.child(checkpoint, network=place.slot(number)) for number in (2, 3)))
    for number, child in zip((2, 3), children, strict=True):
        ended, within, anew = await asked(child)
        assert ended in ("ConnectionResetError", "BrokenPipeError")
        assert (within, anew) == ("hello", f"10.88.{number}.2 hello")
        assert await shell(child, "cat /tmp/waited") == "ConnectionResetError"
        assert GUEST_ADDRESS in await shell(
            child,
            "python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
            f' s.connect(("{SERVER}", 1)); print(s.getsockname())\'',
        )
    assert await shell(parent, "cat /tmp/waited 2>&1 || true") != "ConnectionResetError"
    agent.close()
    await children[0].pause()
    (grandchild,) = [await yard.child(await yard.checkpoint(children[0]), network=place.slot(4))]
    assert (await asked(grandchild))[1:] == ["hello", "10.88.4.2 hello"]
    for machine in (parent, *children, grandchild):
        await machine.kill()
        await machine.freed()
    assert yard.leftovers() == NOTHING


async def test_the_way_out_is_the_agents_alone(yard: GvisorYard, place: Place) -> None:
    machine = await yard.backend.start(yard.spec(network=place.slot(1)))
    take = (
        "import fcntl, os, struct; fcntl.ioctl(os.open('/dev/net/tun', os.O_RDWR), 0x400454CA, struct.pack('16sH22x', b'uplink', 0x1002))"
    )
    assert "PermissionError" in await shell(machine, f'python3 -c "{take}" 2>&1')


@pytest.mark.parametrize(("had", "told"), [(True, "a network and cannot go on with none"), (False, "no network and cannot go on with one")])
def test_a_checkpoint_goes_on_with_a_network_where_it_had_one(tmp_path: Path, had: bool, told: str) -> None:
    write_facts(tmp_path, "runsc 1", Carried(b"", b"", 1), network=had, agent=binary("agentenv-agent"))
    with pytest.raises(CapabilityError, match=told):
        read_facts(tmp_path, "runsc 1", network=not had)
    assert read_facts(tmp_path, "runsc 1", network=had).network is had


async def test_a_way_out_that_cannot_be_made_leaves_nothing(yard: GvisorYard, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InfrastructureError("the agent has no way out.")

    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the open ones
    with pytest.raises(InfrastructureError, match="/run/netns/none"):
        await yard.backend.start(yard.spec(network=Network(enabled=True, netns=Path("/run/netns/none"), address="10.0.0.2")))
    with monkeypatch.context() as broken:
        broken.setattr(backend_module.uplink, "bring_up", refuse)
        with pytest.raises(InfrastructureError, match="no way out"):
            await yard.backend.start(yard.spec(network=place.slot(1)))
    assert yard.leftovers() == NOTHING
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_closed_way_out_stays_closed(place: Place) -> None:
    way_out = Uplink.open(place.slot(1))
    assert way_out.link.mtu <= 1486
    way_out.close()
    way_out.close()
    assert way_out.descriptor == -1
