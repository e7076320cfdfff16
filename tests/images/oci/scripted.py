"""A registry that does what a test tells it: asks for a token, breaks off, sends something else."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from tests.oci import MadeImage


@dataclass
class Script:
    """What the registry has, and how it behaves."""

    image: MadeImage
    token: str | None = None
    """It wants this one, and gives it to whoever asks at /token (with `login` where that is set)."""
    login: tuple[str, str] | None = None
    breaks_after: list[int] = field(default_factory=list)
    """For each answer with a blob the bytes after which it breaks off, the first one first."""
    replaced: dict[str, bytes] = field(default_factory=dict)
    status: int | None = None
    ranges: list[str | None] = field(default_factory=list)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    turn: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    """Answers as the `script` of its sub-class says."""

    script: ClassVar[Script]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.script.asked.append((self.path, self.headers.get("Authorization")))
        if self.path.startswith("/token"):
            self._give_token()
        elif self.script.token is not None and self.headers.get("Authorization") != f"Bearer {self.script.token}":
            realm = f'Bearer realm="http://{self.headers["Host"]}/token",service="tests",scope="repository:x:pull"'
            self._answer(401, b"{}", {"WWW-Authenticate": realm})
        elif self.script.status is not None:
            self._answer(self.script.status, b"{}")
        elif "/manifests/" in self.path:
            self._answer(200, self.script.image.manifest, {"Content-Type": self.script.image.media_type})
        else:
            self._blob(self.path.rpartition("/")[2])

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.script.asked.append((self.path, form["refresh_token"][0]))
        self._answer(200, json.dumps({"access_token": self.script.token}).encode())

    def _give_token(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        wanted = self.script.login and "Basic " + base64.b64encode(":".join(self.script.login).encode()).decode()
        right = asked == {"service": ["tests"], "scope": ["repository:x:pull"]} and self.headers.get("Authorization") == wanted
        self._answer(200 if right else 401, json.dumps({"token": self.script.token}).encode())

    def _blob(self, digest: str) -> None:
        blob = self.script.replaced.get(digest, self.script.image.blobs[digest])
        whole = len(blob)
        config = blob == self.script.image.config
        start = 0
        if not config:
            asked = self.headers.get("Range")
            self.script.ranges.append(asked)
            start = int(re.findall(r"\d+", asked)[0]) if asked else 0
        blob = blob[start:]
        with self.script.turn:
            cut = self.script.breaks_after.pop(0) if self.script.breaks_after and not config else len(blob)
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        self.send_header("Content-Length", str(len(blob)))
        self.end_headers()
        self.wfile.write(blob[:cut])
        self.close_connection = cut < len(blob)

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def scripted_registry(script: Script) -> Iterator[str]:
    """Serves it on loopback; gives its name."""
    handler = type("Handler", (_Handler,), {"script": script})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
