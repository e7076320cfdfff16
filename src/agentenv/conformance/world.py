"""A server that says where it was reached: run as a program by the checks of networks, at each end of the world that they make.

`python world.py`: prints "up", and serves port 7000 on every address of the machine until its standard input ends. Each connection is
told the address at which it arrived, and then gets back what it sends.
"""

from __future__ import annotations

import socketserver
import sys
import threading

PORT = 7000


class Answering(socketserver.StreamRequestHandler):
    """One connection."""

    def handle(self) -> None:
        """Greets, then echoes line by line."""
        self.wfile.write(f"{self.request.getsockname()[0]}\n".encode())
        for line in self.rfile:
            self.wfile.write(line)


class Server(socketserver.ThreadingTCPServer):
    """All of them."""

    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that break off are part of what is tried."""


def main() -> None:
    """Serves until nobody holds the other end of standard input."""
    with Server(("", PORT), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write("up\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
