"""Our own handle on sandboxes of a real server: the same behaviour as on this machine, and what only a server has."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator

import pytest
from tests.conditions import needs_root
from tests.server.conftest import RunningServer, StartServer

from agentenv.egress.policy import EgressPolicy
from agentenv.errors import (
    AgentEnvError,
    ConfigError,
    InfrastructureError,
    InvalidState,
    NotFound,
    OutOfMemory,
    QuotaExceeded,
    Unauthenticated,
)
from agentenv.isolation.contract import Resources
from agentenv.node.records import NetworkRequest, SandboxRequest
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.remote.address import ServerAddress
from agentenv.sandbox.remote.node import RemoteNode
from agentenv.sandbox.remote.tunnel import open_tunnel
from agentenv.server.access import Quotas, Role

ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 8123))
print("up", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
"""


@pytest.fixture
async def node(server: RunningServer) -> AsyncIterator[RemoteNode]:
    remote = RemoteNode(ServerAddress(server.url, server.key))
    yield remote
    await remote.close()


@pytest.fixture
async def sandbox(node: RemoteNode) -> AsyncIterator[AsyncSandbox]:
    made = await create(node)
    yield made
    await made.kill()


async def create(node: RemoteNode, **wishes: object) -> AsyncSandbox:
    return AsyncSandbox(await node.create(SandboxRequest(**wishes)), node)  # type: ignore[arg-type]


async def test_commands_files_and_ports(sandbox: AsyncSandbox) -> None:
    result = await sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    content = bytes(range(256)) * 20_000
    await sandbox.files.write("/root/data", content)
    assert await sandbox.files.read("/root/data", format="bytes") == content
    server = await sandbox.commands.run([sys.executable, "-c", ECHO], background=True)
    assert (await anext(aiter(server))).stdout == "up\n"
    for plain in (await sandbox.dial(8123), await asyncio.to_thread(_connect, await sandbox.get_host(8123))):
        with plain:
            plain.sendall(b"hello")
            assert await asyncio.to_thread(plain.recv, 100) == b"HELLO"


def _connect(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)))


async def test_pause_snapshot_rollback_and_fork(node: RemoteNode, sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("/root/note", "one")
    kept = await sandbox.snapshot("first")
    await sandbox.files.write("/root/note", "two")
    await sandbox.pause()
    with pytest.raises(InvalidState, match="paused"):
        await sandbox.commands.run("true")
    await sandbox.resume()
    children = await sandbox.fork(2)
    await sandbox.pause()
    with pytest.raises(InvalidState, match="paused"):
        await sandbox.rollback(kept)
    await sandbox.resume()
    await sandbox.rollback(kept)
    assert (await sandbox.files.read("/root/note"), sandbox.generation) == ("one", 2)
    for child in children:
        assert isinstance(child, AsyncSandbox)
        assert await child.files.read("/root/note") == "two"
        assert await child.kill()
    again = await create(node, snapshot=kept.id)
    assert await again.files.read("/root/note") == "one"
    assert [one.name for one in await node.snapshots() if one.id == kept.id] == ["first"]
    await again.kill()
    await node.delete_snapshot("first")
    with pytest.raises(NotFound):
        await create(node, snapshot="first")


async def test_a_pause_ends_no_lifetime_and_forks_have_one_too(server: RunningServer, node: RemoteNode) -> None:
    sandbox = await create(node, lifetime=600.0)
    await sandbox.pause()
    await sandbox.resume()
    (child,) = await sandbox.fork(1)
    assert isinstance(child, AsyncSandbox)
    for one in (sandbox, child):
        end = server.fleet.owned(server.tenant, one.id).end
        assert end is not None
        assert 0 < end - time.time() <= 600
        await one.kill()


async def test_a_limit_explains_a_death_that_the_client_sees_as_a_broken_stream(node: RemoteNode) -> None:
    sandbox = await create(node, resources=Resources(memory=64 << 20))
    with pytest.raises(OutOfMemory):
        await sandbox.commands.run([sys.executable, "-c", "x = bytearray(512 << 20)"])
    await sandbox.kill()


async def test_a_death_is_told_to_who_waits_and_to_who_asks_later(server: RunningServer, node: RemoteNode) -> None:
    sandbox = await create(node)
    host = sandbox._host
    waiting = asyncio.create_task(host.wait())
    server.wait(server.fleet.kill(server.tenant, sandbox.id, reason="the test wanted it"))
    assert (await waiting).reason
    assert sandbox.state == "dead"
    with pytest.raises(AgentEnvError):
        await sandbox.commands.run("true")
    late = await node._client.request("GET", f"/node/v1/sandboxes/{sandbox.id}/end", dict)
    assert late["ended"]["exit"]["reason"]


async def test_resizing_counts_against_the_quota(server: RunningServer) -> None:
    _, (key,) = server.new_tenant("small", Role.USER, quotas=Quotas(memory=300 << 20))
    node = RemoteNode(ServerAddress(server.url, key))
    sandbox = await create(node, resources=Resources(memory=100 << 20))
    await sandbox.resize(memory=200 << 20)
    assert (await sandbox.metrics()).memory_limit == 200 << 20
    with pytest.raises(QuotaExceeded):
        await sandbox.resize(memory=400 << 20)
    assert (await sandbox.metrics()).memory_limit == 200 << 20
    await node.close()


async def test_the_end_of_a_client_is_the_end_of_its_sandboxes(server: RunningServer) -> None:
    node = RemoteNode(ServerAddress(server.url, server.key))
    sandbox = await create(node)
    (child,) = await sandbox.fork(1)
    assert isinstance(child, AsyncSandbox)
    await node.close()
    assert not server.fleet.known(sandbox.id)
    assert not server.fleet.known(child.id)


async def test_a_client_that_is_not_heard_of_any_more_leaves_nothing(start_server: StartServer) -> None:
    server = start_server({"idle.lease": 2.0})
    node = RemoteNode(ServerAddress(server.url, server.key))
    sandbox = await create(node)
    assert node._held is not None
    node._held.renewing.cancel()  # as if its process had been killed
    ended = await sandbox._host.wait()
    assert "not been heard of" in ended.reason or not server.fleet.known(sandbox.id)
    await node._client.close()


async def test_another_tenant_sees_and_touches_nothing(server: RunningServer, sandbox: AsyncSandbox) -> None:
    _, (key,) = server.new_tenant("other", Role.ADMIN)
    other = RemoteNode(ServerAddress(server.url, key))
    assert await other.infos() == []
    with pytest.raises(NotFound):
        await other.attach(sandbox.id)
    with pytest.raises(NotFound):
        await other.kill(sandbox.id)
    with pytest.raises(NotFound):
        await asyncio.to_thread(open_tunnel, ServerAddress(server.url, key), sandbox.id)
    assert await sandbox.is_running()
    await other.close()


async def test_a_key_that_only_reads_or_that_nobody_knows_gets_no_tunnel(server: RunningServer, sandbox: AsyncSandbox) -> None:
    _, (key,) = server.new_tenant("reader", Role.READ_ONLY)
    for wrong in (key, "e2b_" + "f" * 40):
        with pytest.raises(Unauthenticated):
            await asyncio.to_thread(open_tunnel, ServerAddress(server.url, wrong), sandbox.id)


async def test_the_servers_files_cannot_be_named(node: RemoteNode) -> None:
    for image in ("dir:/etc", "tar:/etc/x.tar", "oci:/srv/images"):
        with pytest.raises(ConfigError, match="no name of an image"):
            await create(node, image=image)


@needs_root
async def test_rules_for_the_network_are_those_that_the_operator_allows(node: RemoteNode) -> None:
    sandbox = await create(node, network=NetworkRequest(enabled=True))
    await sandbox.set_network({"allow_internet_access": False, "allow": ["192.0.2.7:443"]})
    with pytest.raises(ConfigError, match="not on the public internet"):
        await sandbox.set_network({"allow": ["10.0.0.0/8"]})
    with pytest.raises(ConfigError, match="not on the public internet"):
        await create(node, network=NetworkRequest(enabled=True, policy=EgressPolicy.of(True, ["10.1.2.3"])))
    assert await sandbox.network_log() == []
    await sandbox.kill()


async def test_a_server_that_is_not_there_is_one_clear_error(free_port: int) -> None:
    node = RemoteNode(ServerAddress(f"http://127.0.0.1:{free_port}", "key"))
    with pytest.raises(InfrastructureError, match=r"cannot be reached.*agentenv serve"):
        await create(node)
    await node.close()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
