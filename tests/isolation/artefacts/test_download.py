"""Downloads from a server of our own that can break off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentenv.isolation.artefacts.download import download

CONTENT = bytes(range(256)) * 4096


class Server(ThreadingHTTPServer):
    """Serves CONTENT; `breaks_after` bytes of the next answers it closes the connection. Remembers what was asked for."""

    breaks_after: int | None = None
    ignores_ranges = False

    def __init__(self) -> None:
        self.ranges: list[str | None] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        wanted = self.headers.get("Range")
        server.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and not server.ignores_ranges else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start:] if server.breaks_after is None else CONTENT[start : start + server.breaks_after])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_download_is_counted(server: Server, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    download(server.url, tmp_path / "file", lambda *news: told.append(news))
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert told[-1] == ("fetching file", len(CONTENT), len(CONTENT))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_download_that_broke_off_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.breaks_after = 300_000
    with pytest.raises(OSError, match="broke off after 300000 of 1048576 bytes"):
        download(server.url, tmp_path / "file", lambda *news: None)
    assert not (tmp_path / "file").exists()
    server.breaks_after = None
    download(server.url, tmp_path / "file", lambda *news: None)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


def test_a_server_without_ranges_begins_anew(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.partial").write_bytes(b"old")
    server.ignores_ranges = True
    download(server.url, tmp_path / "file", lambda *news: None)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_download_that_was_complete_is_only_renamed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.partial").write_bytes(CONTENT)
    download(server.url, tmp_path / "file", lambda *news: None)
    assert (tmp_path / "file").read_bytes() == CONTENT
