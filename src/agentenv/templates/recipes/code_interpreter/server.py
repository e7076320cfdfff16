"""Runs code in Jupyter kernels for `e2b-code-interpreter`; it is copied into a template and imports nothing of AgentENV.

`POST /execute` answers with a line of JSON for each thing that happens (output, results, an error, the number of the execution), as it
happens; it goes on until the kernel is idle, and the kernel is interrupted when the client goes away. `/contexts` makes, lists, restarts
and removes kernels. Kernels speak the Jupyter messaging protocol (https://jupyter-client.readthedocs.io/en/stable/messaging.html).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager

PORT = 49999
LARGEST = 64 << 20
STARTUP = 60.0
POLL = 0.2
"""Seconds between two looks whether the client is still there."""

KERNELS = {"python": "python3", "bash": "python3"}
"""The kernel of each language; bash is run by the Python kernel, each time by a fresh shell."""

DISPLAY = f"__import__('sys').path.append({str(Path(__file__).parent / 'kernel')!r}); __import__('agentenv_kernel').install(get_ipython())"
"""What each kernel runs first, so that it tells of data frames and figures what is in them; it leaves no name behind."""

FORMATS = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png",
    "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex", "application/json": "json",
    "application/javascript": "javascript", "application/vnd.agentenv.data+json": "data", "application/vnd.agentenv.chart+json": "chart",
}  # fmt: skip


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Context:
    """A kernel with its language and directory; `turn` is held by the one execution that runs in it, `restarts` counts its lives."""

    id: str
    language: str
    cwd: str
    manager: KernelManager
    turn: threading.Lock = field(default_factory=threading.Lock)
    restarts: int = 0

    def restart(self) -> None:
        """Forgets all that was run, and returns when it runs anew."""
        self.restarts += 1
        self.manager.restart_kernel(now=True)
        wait_until_ready(self)

    def described(self) -> dict[str, str]:
        """As clients see it."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}


class Contexts:
    """All kernels. Each language has a default one, made when it is first asked for."""

    def __init__(self) -> None:
        self._known: dict[str, Context] = {}
        self._defaults: dict[str, str] = {}
        self._changing = threading.Lock()

    def all(self) -> list[Context]:
        """Every kernel."""
        return list(self._known.values())

    def find(self, identifier: str) -> Context:
        """The kernel with that id."""
        found = self._known.get(identifier)
        if found is None:
            raise Refused(404, f"Context {identifier} not found")
        return found

    def default(self, language: str) -> Context:
        """The default kernel of a language."""
        with self._changing:
            identifier = self._defaults.get(language)
            if identifier is None or identifier not in self._known:
                self._defaults[language] = identifier = self._start(language, None).id
            return self._known[identifier]

    def create(self, language: str, cwd: str | None) -> Context:
        """A fresh kernel."""
        with self._changing:
            return self._start(language, cwd)

    def restart(self, identifier: str) -> None:
        """Forgets all that was run in a kernel."""
        self.find(identifier).restart()

    def remove(self, identifier: str) -> None:
        """Ends a kernel."""
        context = self.find(identifier)
        del self._known[identifier]
        context.manager.shutdown_kernel(now=True)

    def close(self) -> None:
        """Ends them all."""
        for context in self.all():
            with contextlib.suppress(Refused):
                self.remove(context.id)

    def _start(self, language: str, cwd: str | None) -> Context:
        if language not in KERNELS:
            raise Refused(501, f"There is no kernel for {language!r}; there are {', '.join(KERNELS)}")
        directory = Path(cwd or Path.home())
        if not directory.is_dir():
            raise Refused(400, f"{directory} is no directory")
        identifier = str(uuid.uuid4())
        # A relative path would be the kernel's own, whose directory is another.
        manager = KernelManager(kernel_name=KERNELS[language], transport="ipc", ip=f"{tempfile.gettempdir()}/kernel-{identifier}")
        manager.start_kernel(cwd=str(directory), extra_arguments=["--HistoryManager.enabled=False", f"--IPKernelApp.exec_lines={DISPLAY}"])
        context = Context(identifier, language, str(directory), manager)
        self._known[context.id] = context
        return context


def execute(context: Context, code: str, variables: dict[str, str], gone: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """What happens while code runs, until it has ended; it is interrupted when the client is `gone`."""
    client = context.manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=STARTUP)
        with _environment(client, variables):
            source = f"%%bash\n{code}" if context.language == "bash" else code
            yield from _events(client, client.execute(source, allow_stdin=False), context, gone)
    finally:
        client.stop_channels()


@contextlib.contextmanager
def _environment(client: Any, variables: dict[str, str]) -> Iterator[None]:
    """Variables for one execution; afterwards they are what they were before."""
    if not variables:
        yield
        return
    encoded = json.dumps(json.dumps(variables))
    name = "_agentenv_environment"
    before = f"import os as _os, json as _json\n{name} = dict(_os.environ)\n_os.environ.update(_json.loads({encoded}))"
    client.execute_interactive(before, silent=True, store_history=False, timeout=STARTUP)
    yield
    after = f"_os.environ.clear(); _os.environ.update({name}); del {name}"
    client.execute_interactive(after, silent=True, store_history=False, timeout=STARTUP)


def _events(client: Any, request: str, context: Context, gone: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    life = context.restarts
    while True:
        if context.restarts != life:
            yield {"type": "error", "name": "KernelRestarted", "value": "The kernel was restarted while this ran in it.", "traceback": ""}
            return
        try:
            message = client.get_iopub_msg(timeout=POLL)
        except Empty:
            if gone():
                context.manager.interrupt_kernel()
                return
            if not context.manager.is_alive():
                yield {"type": "error", "name": "KernelDied", "value": "The kernel has ended, perhaps for want of memory.", "traceback": ""}
                context.restart()
                return
            continue
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] == "idle":
            return
        if (event := _event(kind, content)) is not None:
            yield event


def _event(kind: str, content: dict[str, Any]) -> dict[str, Any] | None:
    """A message of the kernel as clients read it."""
    if kind == "stream":
        return {"type": content["name"], "text": content["text"], "timestamp": time.time_ns()}
    if kind in ("execute_result", "display_data"):
        return {"type": "result", "is_main_result": kind == "execute_result", **_formats(content["data"])}
    if kind == "error":
        return {"type": "error", "name": content["ename"], "value": content["evalue"], "traceback": "\n".join(content["traceback"])}
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    return None


def _formats(data: dict[str, Any]) -> dict[str, Any]:
    known = {FORMATS[kind]: value for kind, value in data.items() if kind in FORMATS}
    extra = {kind: value for kind, value in data.items() if kind not in FORMATS}
    text = known.get("text")
    # A text is shown without the quotes of its repr, as E2B's own interpreter does.
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        known["text"] = text[1:-1]
    return {**known, **({"extra": extra} if extra else {})}


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    contexts: Contexts

    def do_GET(self) -> None:
        """Health, whether the Python kernel is ready, and the kernels."""
        self._answer(self._read)

    def do_DELETE(self) -> None:
        """Ends a kernel."""
        self._answer(lambda: self.contexts.remove(self._identifier()))

    def do_POST(self) -> None:
        """Runs code, makes a kernel, or restarts one."""
        if self.path == "/execute":
            self._execute()
        elif self.path == "/contexts":
            self._answer(self._create)
        else:
            self._answer(lambda: self.contexts.restart(self._identifier("/restart")))

    def log_message(self, format: str, *arguments: object) -> None:
        """Nobody reads it."""

    def _create(self) -> dict[str, str]:
        wish = self._body()
        return self.contexts.create(wish.get("language") or "python", wish.get("cwd")).described()

    def _execute(self) -> None:
        try:
            wish = self._body()
            identifier = wish.get("context_id")
            context = self.contexts.find(identifier) if identifier else self.contexts.default(wish.get("language") or "python")
        except Refused as refused:
            self._send(refused.status, str(refused).encode(), "text/plain")
            return
        with context.turn:
            self.send_response(200)
            self.send_header("Content-Type", "application/x-ndjson")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for event in execute(context, str(wish.get("code", "")), wish.get("env_vars") or {}, self._gone):
                    self._chunk(json.dumps(event).encode() + b"\n")
                self._chunk(b"")
            except (BrokenPipeError, ConnectionResetError):
                context.manager.interrupt_kernel()
                self.close_connection = True

    def _gone(self) -> bool:
        """Whether the client has closed its side: it sends nothing while it waits."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _body(self) -> dict[str, Any]:
        size = int(self.headers.get("Content-Length") or 0)
        if size > LARGEST:
            raise Refused(413, f"More than {LARGEST} bytes")
        try:
            body = json.loads(self.rfile.read(size) or b"{}")
        except ValueError as error:
            raise Refused(400, f"No JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refused(400, "No JSON object")
        return body

    def _identifier(self, ending: str = "") -> str:
        parts = self.path.removesuffix(ending).split("/")
        if len(parts) != 3 or parts[1] != "contexts" or not self.path.endswith(ending):
            raise Refused(404, f"There is nothing at {self.path}")
        return parts[2]

    def _read(self) -> object:
        if self.path == "/contexts":
            return [context.described() for context in self.contexts.all()]
        if self.path == "/ready":
            wait_until_ready(self.contexts.default("python"))
        elif self.path != "/health":
            raise Refused(404, f"There is nothing at {self.path}")
        return {"status": "ok"}

    def _answer(self, work: Callable[[], object]) -> None:
        try:
            result = work()
        except Refused as refused:
            self._send(refused.status, str(refused).encode(), "text/plain")
        else:
            self._send(200, json.dumps(result).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def wait_until_ready(context: Context) -> None:
    """Returns when a kernel answers."""
    client = context.manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=STARTUP)
    finally:
        client.stop_channels()


def check() -> int:
    """Whether the server answers and its Python kernel runs."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=STARTUP)
        connection.request("GET", "/ready")
        return 0 if connection.getresponse().status == 200 else 1
    except OSError:
        return 1


def main() -> int:
    """Serves until it is killed; with `--check` says whether one serves already."""
    if "--check" in sys.argv:
        return check()
    contexts = Contexts()
    contexts.default("python")
    server = ThreadingHTTPServer(("", PORT), type("Bound", (Handler,), {"contexts": contexts}))
    server.daemon_threads = True
    try:
        server.serve_forever()
    finally:
        contexts.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
