"""The server in the sandbox: tells what it was asked, streams, and echoes WebSockets. `python inside.py PORT WEBSOCKET_PORT`."""

from __future__ import annotations

import asyncio
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

from websockets.asyncio.server import ServerConnection, serve

GO_ON = Event()


class Handler(BaseHTTPRequestHandler):
    """GET /head/STATUS, /bytes/COUNT, /events (its second event comes after /go), /hold, /half; POST /echo, /count, /early."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Serves what the path names."""
        what, _, value = self.path.lstrip("/").partition("/")
        if what == "bytes":
            self._head(200, ("Content-Length", value), ("X-Twice", "1"), ("X-Twice", "2"))
            left = int(value)
            while left:
                left -= self.wfile.write(bytes(min(left, 1 << 20)))
        elif what == "events":
            self._head(200, ("Content-Type", "text/event-stream"))
            self.wfile.write(b"data: first\n\n")
            GO_ON.wait()
            self.wfile.write(b"data: second\n\n")
            self.close_connection = True
        elif what == "half":
            self._head(200, ("Content-Length", "100"))
            self.wfile.write(b"only this")
            self.close_connection = True
        elif what == "head":
            self._head(int(value), ("Content-Length", "0"))
        elif what == "hold":
            GO_ON.clear()
            self._head(204)
        elif what == "go":
            GO_ON.set()
            self._head(204)
        else:
            self._tell(b"")

    def do_POST(self) -> None:
        """Reads the body, but for /early."""
        if self.path == "/early":
            self.close_connection = True
            self._tell(b"early")
            return
        chunked = self.headers.get("Transfer-Encoding") == "chunked"
        body = self._chunks() if chunked else self.rfile.read(int(self.headers["Content-Length"]))
        self._tell(str(len(body)).encode() if self.path == "/count" else body)

    do_PUT = do_PATCH = do_DELETE = do_POST

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _tell(self, body: bytes) -> None:
        told = {"method": self.command, "path": self.path, "headers": [[name.lower(), value] for name, value in self.headers.items()]}
        content = json.dumps({**told, "body": body.decode("latin-1")}).encode()
        self._head(200, ("Content-Type", "application/json"), ("Content-Length", str(len(content))))
        self.wfile.write(content)

    def _head(self, status: int, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing: the test reads what this process prints."""


async def echo(connection: ServerConnection) -> None:
    """Says where it was asked, then echoes; `close` has it closed with 4001."""
    await connection.send(f"{connection.request.path} {connection.subprotocol}" if connection.request else "")
    async for message in connection:
        if message == "close":
            await connection.close(4001, "as you wish")
        await connection.send(message)


async def main(port: int, websocket_port: int) -> None:
    """Serves for ever."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    async with serve(echo, "127.0.0.1", websocket_port, subprotocols=["chat", "superchat"], max_size=None):  # type: ignore[list-item]
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
