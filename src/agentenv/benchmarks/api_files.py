"""Large files into a sandbox of a server and out of it: by our own handle, and by HTTP as E2B's clients do.

Beside the first the same in-process; beside the second a server of the same kind that throws away what comes and sends zeros: what the
client and HTTP cost by themselves.
"""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from agentenv.benchmarks.api import IN_PROCESS, Served, served
from agentenv.benchmarks.row import Row, Scale, Target, in_turn, rate_row, timed
from agentenv.sandbox import Sandbox

MEGABYTE = 1_000_000
TARGET = Target("value", ">=", 200.0)
OCTETS = {"Content-Type": "application/octet-stream"}


def run(scale: Scale) -> Iterator[Row]:
    """MB/s of one large file, there and back."""
    content = os.urandom(scale.count(200, 10) * MEGABYTE)
    rounds = scale.count(5, 2)
    with served() as server:
        yield from _own_handle(server, content, rounds)
        yield from _http(server, content, rounds)


def _own_handle(server: Served, content: bytes, rounds: int) -> Iterator[Row]:
    with Sandbox.create(**server.where) as there, Sandbox.create(**IN_PROCESS) as here:  # type: ignore[arg-type]

        def write_to(sandbox: Sandbox) -> float:
            return _rate(content, lambda: sandbox.files.write("/data.bin", content))

        def read_from(sandbox: Sandbox) -> float:
            rate = _rate(content, lambda: sandbox.files.read("/data.bin", format="bytes"))
            if sandbox.files.get_info("/data.bin").size != len(content):
                raise AssertionError("what was written is not whole")
            return rate

        for name, measure in (("api-upload", write_to), ("api-download", read_from)):
            mine, theirs = in_turn(rounds, partial(measure, there), partial(measure, here), warm_up=1)
            yield rate_row(name, mine, theirs, unit="MB/s", reference="the same in-process", target=TARGET)


def _http(server: Served, content: bytes, rounds: int) -> Iterator[Row]:
    """The in-sandbox API's /files. An open file is sent, which httpx takes in pieces; of bytes it copies the rest after each piece."""
    httpx: Any = importlib.import_module("httpx")
    with httpx.Client(base_url=server.url, headers={"X-API-Key": server.key}, timeout=120) as api:
        made = api.post("/sandboxes", json={"templateID": "base", "timeout": 600}).raise_for_status().json()
    headers = {"e2b-sandbox-id": made["sandboxID"], "e2b-sandbox-port": "49983", "X-Access-Token": made.get("envdAccessToken") or ""}
    with _discarding() as url, httpx.Client(timeout=120) as client:
        where = {"path": "/tmp/data.bin", "username": "root"}
        inside = partial(client.build_request, url=f"{server.url}/files", params=where, headers=headers)
        nowhere = partial(client.build_request, url=url, params={"size": len(content)})

        def measured(ask: Callable[..., Any], **what: Any) -> float:
            return _rate(content, lambda: client.send(ask(**what)).raise_for_status())

        def octets(ask: Callable[..., Any]) -> float:
            return measured(ask, method="POST", content=io.BytesIO(content), headers={**headers, **OCTETS})

        def form(ask: Callable[..., Any]) -> float:
            return measured(ask, method="POST", files={"file": ("data.bin", io.BytesIO(content))})

        def download(ask: Callable[..., Any]) -> float:
            return measured(ask, method="GET")

        for name, measure in (("api-upload-http", octets), ("api-upload-form", form), ("api-download-http", download)):
            mine, theirs = in_turn(rounds, partial(measure, inside), partial(measure, nowhere), warm_up=1)
            yield rate_row(name, mine, theirs, unit="MB/s", reference="a server that throws it away", target=TARGET)


def _rate(content: bytes, action: Callable[[], object]) -> float:
    return len(content) / MEGABYTE / timed(action)


@contextmanager
def _discarding() -> Iterator[str]:
    """The URL of a server that throws away what is sent to it and sends `size` zeros to who asks."""
    command = (sys.executable, "-m", "agentenv.benchmarks.discarding")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait()
