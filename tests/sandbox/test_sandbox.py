"""Whole sandboxes on a real node: limits, snapshots, forks, ports, other processes."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from agentenv.egress.policy import EgressPolicy
from agentenv.errors import ConfigError, InvalidState, NotFound, OutOfMemory
from agentenv.node import NetworkRequest, Node
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.wishes import network_request, resources_of

SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 8123))
print("up", flush=True)
for _ in range(2):
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
"""


async def test_it_comes_up_works_and_ends(node: Node) -> None:
    async with await AsyncSandbox.create(node=node, env={"COLOUR": "blue"}, metadata={"task": "t1"}) as sandbox:
        assert (await sandbox.commands.run("echo $COLOUR; hostname")).stdout == f"blue\n{sandbox.id}\n"
        assert await sandbox.is_running()
        assert sum(stage.seconds for stage in sandbox.timings) > 0
        info = await sandbox.get_info()
        assert (info.id, info.state, info.image, info.metadata, info.end_at) == (sandbox.id, "running", "host", {"task": "t1"}, None)
        assert [found.id for found in await AsyncSandbox.list(node=node)] == [sandbox.id]
    assert sandbox.state == "dead"
    assert await AsyncSandbox.list(node=node) == []
    with pytest.raises(InvalidState, match="gone"):
        await sandbox.get_info()


async def test_a_lifetime_ends_it(node: Node) -> None:
    sandbox = await AsyncSandbox.create(node=node, timeout=3600)
    before = (await sandbox.get_info()).end_at
    await sandbox.set_timeout(0.05)
    assert before is not None
    await node.wait_until_empty()
    with pytest.raises(InvalidState, match="lifetime"):
        await sandbox.commands.run("true")


async def test_snapshots_rollback_and_forks(node: Node) -> None:
    async with await AsyncSandbox.create(node=node) as sandbox:
        await sandbox.files.write("/root/note", "one")
        snapshot = await sandbox.snapshot(name="first")
        await sandbox.files.write("/root/note", "two")
        children = await sandbox.fork(2)
        await sandbox.rollback(snapshot)
        assert (await sandbox.files.read("/root/note"), sandbox.generation) == ("one", 2)
        names = set()
        for child in children:
            assert isinstance(child, AsyncSandbox)
            assert await child.files.read("/root/note") == "two"
            await child.files.write("/root/note", child.id)
            names.add((await child.commands.run("hostname; cat /etc/machine-id")).stdout)
            await child.kill()
        assert len(names) == 2
        assert await sandbox.files.read("/root/note") == "one"
    async with await AsyncSandbox.create(snapshot="first", node=node) as again:
        assert await again.files.read("/root/note") == "one"
    await node.delete_snapshot("first")
    with pytest.raises(NotFound):
        await AsyncSandbox.create(snapshot="first", node=node)


async def test_ports_are_reached_from_the_host(node: Node) -> None:
    async with await AsyncSandbox.create(node=node) as sandbox:
        server = await sandbox.commands.run([sys.executable, "-c", SERVER], background=True)
        assert (await anext(aiter(server))).stdout == "up\n"
        with await sandbox.dial(8123) as connection:
            assert connection.getblocking()
            connection.sendall(b"dialled")
            assert await asyncio.to_thread(connection.recv, 100) == b"DIALLED"
        host, port = (await sandbox.get_host(8123)).split(":")
        with await asyncio.to_thread(socket.create_connection, (host, int(port))) as forwarded:
            forwarded.sendall(b"forwarded")
            assert await asyncio.to_thread(forwarded.recv, 100) == b"FORWARDED"
        assert (await server.wait()).exit_code == 0


async def test_what_it_uses_and_its_limits(node: Node) -> None:
    async with await AsyncSandbox.create(node=node, resources={"memory": "96MiB", "pids": 64}) as sandbox:
        usage = await sandbox.metrics()
        assert usage.storage is not None
        if usage.memory_limit is None:
            pytest.skip("memory cannot be limited here")
        assert usage.memory_limit == 96 << 20
        hog = "x = bytearray(10**9)"
        with pytest.raises(OutOfMemory) as caught:
            await sandbox.commands.run([sys.executable, "-c", hog])
        assert caught.value.limit == 96 << 20
        if not await sandbox.is_running():
            assert any(entry.startswith("memory:") for entry in sandbox.capabilities.lost), "it was ended as a whole, unforetold"
            return
        unharmed = await sandbox.commands.run("echo fine")
        assert (unharmed.stdout, unharmed.oom_killed) == ("fine\n", ())
        went_on = await sandbox.commands.run(f"{sys.executable} -c '{hog}' | cat")
        assert (went_on.exit_code, [kill.limit for kill in went_on.oom_killed]) == (0, [96 << 20])
        assert (await sandbox.commands.run("kill -9 $$")).exit_code == 137, "a kill that was told explains no other end"
        await sandbox.resize(memory="256MiB")
        assert (await sandbox.metrics()).memory_limit == 256 << 20


async def test_another_process_reaches_it(node: Node, home: Path) -> None:
    program = (
        "import sys; from agentenv.sandbox import Sandbox\n"
        "box = Sandbox.connect(sys.argv[1])\n"
        "print(box.commands.run('cat /root/note').stdout, box.files.exists('/root/note'), box.shell().run('echo $((1+1))').stdout)\n"
        "box.kill()\n"
    )
    async with await AsyncSandbox.create(node=node) as sandbox:
        await sandbox.files.write("/root/note", "hello")
        other = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            sandbox.id,
            env={"AGENTENV_HOME": str(home), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await other.communicate()
        assert out.decode() == "hello True 2\n\n", err.decode()
        await node.wait_until_empty()
        assert sandbox.state == "dead"
    with pytest.raises(NotFound, match="there is no sandbox 'sbnone'"):
        await AsyncSandbox.connect("sbnone", node=node)


async def test_connecting_in_the_same_process_shares_the_sandbox(node: Node) -> None:
    async with await AsyncSandbox.create(node=node) as sandbox:
        again = await AsyncSandbox.connect(sandbox.id, node=node)
        await again.files.write("/root/x", "x")
        assert await sandbox.files.exists("/root/x")
        await again.kill()
        assert sandbox.state == "dead"


def test_limits_as_people_write_them() -> None:
    limits = resources_of({"cpu": 1.5, "memory": "1GiB", "storage": 1000})
    assert (limits.cpu, limits.memory, limits.storage, limits.pids) == (1.5, 1 << 30, 1000, 4096)
    assert resources_of(None).memory is None
    wrong = {"ram": 1, "memory": "lots", "cpu": 0, "storage": True, "pids": 1.5}
    for key, value in wrong.items():
        with pytest.raises(ConfigError, match=f"resources.{key}"):
            resources_of({key: value})


def test_networks_as_people_write_them() -> None:
    assert network_request(True) == NetworkRequest(True)
    assert network_request({"enabled": True, "ports": [80, 81]}) == NetworkRequest(True, (80, 81))
    rules = {"allow_internet_access": False, "allow": ["Example.org", "10.0.0.0/8"], "deny": [], "bandwidth": {"up": "8Mbit/s"}}
    policy = EgressPolicy(False, ("example.org", "10.0.0.0/8"), upload=1_000_000)
    assert network_request({"enabled": True, **rules}) == NetworkRequest(True, policy=policy)
    assert network_request({"allow_internet_access": False}).enabled is False
    for wish in (
        {"ports": [0]},
        {"ports": ["80"]},
        {"enabled": "yes"},
        {"nat": True},
        {"allow": ["example.com"]},
        {"enabled": True, "allow": "example.com"},
        {"enabled": True, "deny": ["*"]},
        {"enabled": True, "bandwidth": {"sideways": 1}},
        {"enabled": True, "bandwidth": {"down": "fast"}},
        {"enabled": True, "bandwidth": 5},
    ):
        with pytest.raises(ConfigError, match="network"):
            network_request(wish)
