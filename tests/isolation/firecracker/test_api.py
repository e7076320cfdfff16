"""The client against a server of a few lines, which answers as it is told: in pieces, late, wrongly, or not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentenv.errors import InfrastructureError, ProtocolError
from agentenv.isolation.firecracker.api import (
    UNLIMITED,
    Api,
    ApiError,
    BalloonUpdate,
    BootSource,
    Drive,
    DriveUpdate,
    MemoryBackend,
    RateLimiter,
    SnapshotLoad,
    State,
    Version,
)

NO_CONTENT = b"HTTP/1.1 204 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n\r\n"


def answer(body: bytes, status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} \r\nServer: Firecracker API\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Server:
    """Serves one connection after the other; `script` says what each request is answered with, in which pieces (None: hang up)."""

    def __init__(self, path: Path, script: list[list[bytes] | None]) -> None:
        self.path = path
        self.requests: list[bytes] = []
        self.connections = 0
        self._script = script
        self._held = ExitStack()
        self._listener = self._held.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._script:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            self.connections += 1
            with connection:
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        while self._script and (request := self._read(connection)):
            self.requests.append(request)
            pieces = self._script.pop(0)
            if pieces is None:
                return
            with suppress(BrokenPipeError):  # the client wants to hear no more
                for piece in pieces:
                    connection.sendall(piece)

    def _read(self, connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = connection.recv(4096)
            if not chunk:
                return b""
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
        while len(body) < length:
            body += connection.recv(4096)
        return head + b"\r\n\r\n" + body

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which wakes the thread up
        self._thread.join()
        self._held.close()


Serve = Callable[..., tuple[Server, Api]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with ExitStack() as held:

        def start(*script: list[bytes] | None) -> tuple[Server, Api]:
            server = Server(tmp_path / "api", list(script))
            api = Api(server.path)
            held.callback(server.close)
            held.callback(api.close)
            return server, api

        yield start


def test_one_connection_serves_all_requests(serve: Serve) -> None:
    server, api = serve([NO_CONTENT], [NO_CONTENT], [answer(b'{"firecracker_version":"1.12.1"}')])
    api.patch("/vm", State("Paused"))
    api.put("/boot-source", BootSource("kernel", "console=ttyS0"))
    assert api.get("/version", Version) == Version("1.12.1")
    assert server.connections == 1
    assert server.requests[0].startswith(b"PATCH /vm HTTP/1.1\r\n")
    assert server.requests[0].endswith(b'{"state":"Paused"}')
    assert server.requests[1].endswith(b'{"kernel_image_path":"kernel","boot_args":"console=ttyS0"}')


@given(cuts=st.lists(st.integers(1, 120), max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
def test_an_answer_comes_in_any_pieces(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    whole = answer(b'{"amount_mib":12}')
    places = [0, *sorted({cut for cut in cuts if cut < len(whole)}), len(whole)]
    server = Server(tmp_path_factory.mktemp("api") / "api", [[whole[begin:end] for begin, end in pairwise(places)]])
    api = Api(server.path)
    try:
        assert api.get("/balloon", BalloonUpdate).amount_mib == 12
    finally:
        api.close()
        server.close()


def test_a_refusal_has_firecrackers_words(serve: Serve) -> None:
    _, api = serve([answer(b'{"fault_message":"The requested operation is not supported after starting the microVM."}', 400)], [NO_CONTENT])
    with pytest.raises(ApiError) as caught:
        api.patch("/vm", State("Resumed"))
    assert caught.value.status == 400
    assert str(caught.value) == "Firecracker refused PATCH /vm: The requested operation is not supported after starting the microVM."
    api.patch("/vm", State("Resumed"))


@pytest.mark.parametrize(
    ("body", "fault"), [(b"Internal error", "Internal error"), (b"", "it gave no reason"), (b'{"other": 1}', '{"other": 1}')]
)
def test_a_refusal_in_other_words(serve: Serve, body: bytes, fault: str) -> None:
    _, api = serve([answer(body, 500)])
    with pytest.raises(ApiError) as caught:
        api.patch("/vm", State("Resumed"))
    assert (caught.value.status, caught.value.fault) == (500, fault)


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 abc \r\n\r\n", b"\0" * 70_000 + b"\r\n\r\n"])
def test_what_is_no_http(serve: Serve, said: bytes) -> None:
    _, api = serve([said], [NO_CONTENT])
    with pytest.raises(ProtocolError, match="Firecracker's answer to PATCH /vm is no HTTP"):
        api.patch("/vm", State("Paused"))


def test_an_answer_that_is_cut_off(serve: Serve) -> None:
    server, api = serve([answer(b'{"amount_mib":12}')[:-4]], None, [NO_CONTENT])
    with pytest.raises(InfrastructureError, match=r"has not answered GET /balloon in 0\.2 s"):
        api.get("/balloon", BalloonUpdate, timeout=0.2)
    with pytest.raises(InfrastructureError, match="cannot be asked for PATCH /vm"):
        api.patch("/vm", State("Paused"))
    api.patch("/vm", State("Paused"))
    assert server.connections == 3


def test_an_answer_of_another_kind(serve: Serve) -> None:
    _, api = serve([answer(b'{"amount_mib":"many"}')], [answer(b"x" * (2 << 20))])
    with pytest.raises(ProtocolError, match="no BalloonUpdate"):
        api.get("/balloon", BalloonUpdate)
    with pytest.raises(ProtocolError, match="too long"):
        api.get("/balloon", BalloonUpdate)


def test_no_answer_in_time(serve: Serve) -> None:
    _, api = serve([], [NO_CONTENT])
    with pytest.raises(InfrastructureError, match=r"has not answered PATCH /vm in 0\.1 s"):
        api.patch("/vm", State("Paused"), timeout=0.1)


def test_nobody_there(tmp_path: Path) -> None:
    api = Api(tmp_path / "api")
    with pytest.raises(InfrastructureError, match="cannot be asked for GET /version: No such file or directory"):
        api.get("/version", Version)
    with pytest.raises(FileNotFoundError):
        api.connect()


def test_a_socket_with_a_long_path(tmp_path: Path) -> None:
    place = tmp_path / ("long" * 30)
    place.mkdir()
    link = tmp_path / "short"
    link.symlink_to(place)
    server = Server(link / "api", [[NO_CONTENT]])
    api = Api(place / "api")
    api.patch("/vm", State("Paused"))
    api.close()
    server.close()
    (request,) = server.requests
    assert request.startswith(b"PATCH /vm ")


def test_what_has_its_default_is_not_sent() -> None:
    """Older versions refuse fields that they do not know."""
    assert msgspec.json.decode(msgspec.json.encode(Drive("root", "root.img", is_root_device=False, is_read_only=True))) == {
        "drive_id": "root",
        "path_on_host": "root.img",
        "is_root_device": False,
        "is_read_only": True,
    }
    assert msgspec.json.decode(msgspec.json.encode(DriveUpdate("root", RateLimiter(ops=UNLIMITED)))) == {
        "drive_id": "root",
        "rate_limiter": {"ops": {"size": 0, "refill_time": 0}},
    }
    load = SnapshotLoad("state", MemoryBackend("memory", "File"), enable_diff_snapshots=True)
    assert msgspec.json.decode(msgspec.json.encode(load)) == {
        "snapshot_path": "state",
        "mem_backend": {"backend_path": "memory", "backend_type": "File"},
        "enable_diff_snapshots": True,
    }
