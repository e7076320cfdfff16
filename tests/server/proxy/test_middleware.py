"""The proxy before a real sandbox with a real server in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from e2b.sandbox.signature import get_signature
from tests.server.proxy.conftest import PORT, SANDBOX_ID, TLS_PORT, WEBSOCKET_PORT, OneSandbox, to
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agentenv.sandbox import AsyncSandbox
from agentenv.server.envd.app import PORT as ENVD
from agentenv.server.fleet import NetworkRules

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = {"x-access-token": "envd-token"}


async def test_what_is_not_for_a_sandbox_is_the_servers_own(http: httpx.AsyncClient) -> None:
    assert (await http.get("/sandboxes")).text == "the server itself"


async def test_every_way_in_leads_to_the_same_server(http: httpx.AsyncClient) -> None:
    for headers, path in (
        (to(PORT), "/a%20b?q=1&q=2"),
        ({"x-agentenv-sandbox-id": SANDBOX_ID, "x-agentenv-target-port": str(PORT)}, "/a%20b?q=1&q=2"),
        ({"host": f"{PORT}-{SANDBOX_ID}.boxes.test:8700"}, "/a%20b?q=1&q=2"),
        ({}, f"/proxy/{SANDBOX_ID}/{PORT}/a%20b?q=1&q=2"),
    ):
        answer = await http.get(path, headers=headers)
        assert (answer.status_code, answer.json()["path"]) == (200, "/a%20b?q=1&q=2")


async def test_pages_under_the_servers_own_host_name_are_of_no_origin(http: httpx.AsyncClient) -> None:
    page = await http.get(f"/proxy/{SANDBOX_ID}/{PORT}/")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox ")
    assert "allow-same-origin" not in policy
    assert "content-security-policy" not in (await http.get("/", headers={"host": f"{PORT}-{SANDBOX_ID}.boxes.test:8700"})).headers


async def test_requests_and_answers_pass_whole(http: httpx.AsyncClient, fleet: OneSandbox) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        told = (await http.request(method, "/echo", content=b"body", headers=to(PORT, x_mine="1"))).json()
        names = [name for name, _ in told["headers"]]
        assert (told["method"], told["body"], "x-mine" in names) == (method, "body", True)
        assert not {"e2b-sandbox-id", "e2b-sandbox-port"} & set(names)
    fleet.change(network=NetworkRules(request_host="localhost:${PORT}"))
    assert ["host", f"localhost:{PORT}"] in (await http.get("/", headers=to(PORT))).json()["headers"]
    answer = await http.get("/bytes/10", headers=to(PORT))
    assert (answer.content, answer.headers.get_list("x-twice")) == (bytes(10), ["1", "2"])
    assert (await http.get("/head/418", headers=to(PORT))).status_code == 418
    assert (await http.head("/bytes/10", headers=to(PORT))).status_code == 501  # the server in the sandbox knows no HEAD
    await fleet.left_alone()


async def test_large_bodies_flow_both_ways(http: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield bytes(1 << 20)

    assert (await http.post("/count", content=pieces(), headers=to(PORT))).json()["body"] == str(8 << 20)
    assert (await http.post("/count", content=bytes(8 << 20), headers=to(PORT))).json()["body"] == str(8 << 20)
    assert len((await http.get(f"/bytes/{8 << 20}", headers=to(PORT))).content) == 8 << 20


async def test_an_answer_before_the_request_is_over(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    lines = [
        "POST /early HTTP/1.1",
        "host: x",
        "content-length: 100000",
        *(f"{name}: {value}" for name, value in to(PORT).items()),
        "",
        "first",
    ]
    writer.write("\r\n".join(lines).encode())
    answer = await reader.readuntil(b'"early"')
    assert answer.startswith(b"HTTP/1.1 200")
    writer.close()


async def test_events_come_when_they_happen(http: httpx.AsyncClient, fleet: OneSandbox) -> None:
    await http.get("/hold", headers=to(PORT))
    async with http.stream("GET", "/events", headers=to(PORT)) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "data: first"
        assert fleet.used == 1
        await http.get("/go", headers=to(PORT))
        assert [line async for line in lines if line] == ["data: second"]
    await fleet.left_alone()


async def test_a_client_that_hangs_up_is_let_go(http: httpx.AsyncClient, fleet: OneSandbox) -> None:
    await http.get("/hold", headers=to(PORT))
    async with http.stream("GET", "/events", headers=to(PORT)) as response:
        assert response.status_code == 200
        assert fleet.used == 1
    await fleet.left_alone()


async def test_faults_of_the_server_inside(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    closed = await http.get("/", headers=to(9))
    assert (closed.status_code, closed.json()["port"], "port is not open" in closed.json()["message"]) == (502, 9, True)
    page = await http.get("/", headers=to(9, accept="text/html"))
    assert (page.status_code, page.headers["content-type"], SANDBOX_ID in page.text) == (502, "text/html; charset=utf-8", True)
    with pytest.raises(httpx.RemoteProtocolError):
        await http.get("/half", headers=to(PORT))
    script = (
        "import socket; far, _ = socket.create_server(('127.0.0.1', 7777)).accept(); far.recv(99); far.sendall(b'nonsense\\r\\n\\r\\n')"
    )
    await sandbox.commands.run(["python3", "-c", script], background=True)
    while (answer := await http.get("/", headers=to(7777))).json().get("port") == 7777:
        pass
    assert (answer.status_code, "no complete HTTP" in answer.json()["message"]) == (502, True)


async def test_a_server_with_tls(http: httpx.AsyncClient, sandbox: AsyncSandbox, fleet: OneSandbox) -> None:
    await sandbox.commands.run(
        "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout k -out c -days 1", cwd="/srv", user="root", check=True
    )
    fleet.change(network=NetworkRules(https_ports=(TLS_PORT,)))
    server = ["openssl", "s_server", "-accept", str(TLS_PORT), "-key", "k", "-cert", "c", "-www"]
    await sandbox.commands.run(server, cwd="/srv", background=True)
    while (answer := await http.get("/", headers=to(TLS_PORT))).status_code == 502:
        pass
    assert (answer.status_code, "s_server" in answer.text) == (200, True)


async def test_websockets(url: str, fleet: OneSandbox) -> None:
    address = f"ws{url.removeprefix('http')}/chat?x=1"
    wishes = {"additional_headers": to(WEBSOCKET_PORT), "subprotocols": ["superchat"], "max_size": None}
    async with connect(address, **wishes) as socket:  # type: ignore[arg-type]
        assert await socket.recv() == "/chat?x=1 superchat"
        assert fleet.used == 1
        for message in ("text", b"bytes", "ü" * 70_000, bytes(1 << 20), ""):
            await socket.send(message)
            assert await socket.recv() == message
        await socket.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "as you wish")
    await fleet.left_alone()
    for port, status in ((9, 502), (PORT, 200)):
        with pytest.raises(InvalidStatus) as refused:
            await connect(address, additional_headers=to(port))
        assert refused.value.response.status_code == status


async def test_credentials_are_not_interchangeable(http: httpx.AsyncClient, fleet: OneSandbox) -> None:
    fleet.change(network=NetworkRules(public_traffic=False))
    for headers in ({}, {"e2b-traffic-access-token": "envd-token"}, {"x-access-token": "traffic-token"}, {"x-api-key": "traffic-token"}):
        assert (await http.get("/", headers=to(PORT) | headers)).status_code == 403
    inside = await http.get("/", headers=to(PORT) | {"e2b-traffic-access-token": "traffic-token"})
    assert (inside.status_code, "traffic-token" in inside.text) == (200, False)
    for headers in ({}, {"x-access-token": "traffic-token"}, {"x-api-key": "envd-token"}, {"e2b-traffic-access-token": "traffic-token"}):
        assert (await http.get("/metrics", headers=to(ENVD) | headers)).status_code == 401
    assert (await http.get("/metrics", headers=to(ENVD) | TOKEN)).status_code == 200


async def test_envd_knows_the_sandbox(http: httpx.AsyncClient) -> None:
    assert (await http.get("/envs", headers=to(ENVD) | TOKEN)).json()["FROM_VIEW"] == "yes"
    assert (await http.get(f"/proxy/{SANDBOX_ID}/{ENVD}/envs", headers=TOKEN)).json()["FROM_VIEW"] == "yes"
    crossing = await http.options("/envs", headers=to(ENVD, origin="http://page", access_control_request_method="GET"))
    assert (crossing.status_code, crossing.headers["access-control-allow-origin"]) == (200, "*")


async def test_a_signed_link_names_its_sandbox_by_the_signature(http: httpx.AsyncClient) -> None:
    for operation, method in (("write", "POST"), ("read", "GET")):
        signed = get_signature("~/linked", operation, None, "envd-token")  # type: ignore[arg-type]
        link = {"path": "~/linked", "signature": signed["signature"]}
        answer = await http.request(method, "/files", params=link, files={"file": b"by link"} if method == "POST" else None)
        assert answer.status_code == 200, answer.text
    assert answer.content == b"by link"
    for changes in ({"path": "~/other"}, {"signature": "v1_x"}, {"signature_expiration": "soon"}):
        assert (await http.get("/files", params=link | changes)).status_code == 400


async def test_requests_that_name_no_sandbox(http: httpx.AsyncClient) -> None:
    for answer in (await http.get("/files"), await http.get("/", headers={"e2b-sandbox-id": SANDBOX_ID}), await http.get("/proxy/x")):
        assert (answer.status_code, answer.json()["code"]) == (400, 400)
