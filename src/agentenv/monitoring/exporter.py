"""Serves metrics to Prometheus on the loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from agentenv.errors import AgentEnvError


class Exporter:
    """An HTTP server on 127.0.0.1 that answers GET /metrics with what `text` returns at that moment; a context manager.

    `port` 0 takes a free one; `.port` is the one taken. Raises `AgentEnvError` where the port is in use or not allowed.
    """

    def __init__(self, text: Callable[[], str], port: int = 0) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.partition("?")[0] not in {"/metrics", "/"}:
                    self.send_error(404, "only /metrics is here")
                    return
                try:
                    status, body, kind = 200, text().encode(), CONTENT_TYPE_LATEST
                except AgentEnvError as error:
                    status, body, kind = 503, f"{error}\n".encode(), "text/plain; charset=utf-8"
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are not logged."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise AgentEnvError(
                f"port {port} of the loopback cannot be served: {error.strerror}.", remedy="Choose another port, or 0 for a free one."
            ) from error
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="agentenv-exporter", daemon=True)

    def __enter__(self) -> Exporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
