"""What the way through a server costs: starts and commands by HTTP, many starts at once, many idle sandboxes.

The server is a process of its own on loopback, in a home of its own, with the namespace backend. Our own handle speaks to it; E2B's client
is measured beside it where it is installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from agentenv.benchmarks.row import ISOLATION, Row, Scale, Target, in_turn, latency_row, machine, percentile, timed
from agentenv.errors import AgentEnvError, InfrastructureError
from agentenv.paths import HERE
from agentenv.sandbox import AsyncSandbox, Sandbox

AT_ONCE = 64
IN_PROCESS = {"server": HERE, "isolation": ISOLATION}
"""The words that make a sandbox in this process instead, of the same kind as the server's."""
_KEY = "e2b_" + "0123456789abcdef" * 2
_SETTINGS = """
capacity: {sandboxes: 5000, starting: 8, queue: 5000, queue_timeout: 10m}
sandboxes: {isolation: namespace, internet: false}
"""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs: its address, its key, its process's number."""

    url: str
    key: str
    pid: int

    @property
    def where(self) -> dict[str, str]:
        """The words that lead a handle to it."""
        return {"server": self.url, "api_key": self.key}


@contextmanager
def served() -> Iterator[Served]:
    """A fresh server within the block."""
    with tempfile.TemporaryDirectory(prefix="agentenv-bench-") as home:
        file = Path(home) / "server.yaml"
        file.write_text(_SETTINGS)
        command = (sys.executable, "-m", "agentenv.cli.main", "serve", "--port", "0", "--config", str(file), "--json")
        environment = {**os.environ, "AGENTENV_HOME": str(Path(home) / "state"), "AGENTENV_API_KEY": _KEY}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Served(_announced(process), _KEY, process.pid)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()


def _announced(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        try:
            return str(json.loads(text)["url"])
        except ValueError:
            continue
    raise InfrastructureError(f"the server ended before it listened; it had said {text!r}.")


def run_start(scale: Scale) -> Iterator[Row]:
    """Create to the end of the first command, through the server beside in-process; and E2B's client on the same server."""
    with served() as server:
        mine, theirs = in_turn(scale.count(200, 10), lambda: _start(**server.where), lambda: _start(**IN_PROCESS), rest=0.03)
        row = latency_row("api-start", mine, theirs, reference="the same in-process", target=Target("ratio", "<=", 3.0))
        yield row
        tail, other = percentile(mine, 0.99), percentile(theirs, 0.99)
        met = Target("ratio", "<=", 3.0).met(tail, tail / other)
        yield replace(row, name="api-start-p99", value=tail * 1000, reference_value=other * 1000, ratio=tail / other, met=met)
        if importlib.util.find_spec("e2b") is not None:
            client, again = in_turn(scale.count(50, 5), lambda: _start_e2b(server), lambda: _start(**server.where), rest=0.03)
            yield latency_row("api-start-e2b", client, again, reference="our own handle", target=None)


def _start(**where: str) -> float:
    begin = perf_counter()
    sandbox = Sandbox.create(**where)  # type: ignore[arg-type]
    sandbox.commands.run("true")
    seconds = perf_counter() - begin
    sandbox.kill()
    return seconds


def _start_e2b(server: Served) -> float:
    client: Any = importlib.import_module("e2b").Sandbox
    begin = perf_counter()
    sandbox = client.create(api_key=server.key, api_url=server.url, sandbox_url=server.url)
    sandbox.commands.run("true")
    seconds = perf_counter() - begin
    sandbox.kill()
    return seconds


def run_exec(scale: Scale) -> Iterator[Row]:
    """One command over the connection that is open already, beside the same in-process."""
    with served() as server, Sandbox.create(**server.where) as there, Sandbox.create(**IN_PROCESS) as here:  # type: ignore[arg-type]
        mine, theirs = in_turn(
            scale.count(1000, 50), lambda: timed(lambda: there.commands.run("true")), lambda: timed(lambda: here.commands.run("true"))
        )
        yield latency_row("api-exec", mine, theirs, reference="the same in-process", target=Target("value", "<=", 4.0))


def run_many(scale: Scale) -> Iterator[Row]:
    """Many starts, 64 at once, each with its first command: median, tail, failures; beside as many in-process."""
    count = scale.count(1000, 32)
    with served() as server:
        asyncio.run(_crowd(1, **server.where))  # what only the first one waits for: the image, the backend
        mine, failures = asyncio.run(_crowd(count, **server.where))
    asyncio.run(_crowd(1, **IN_PROCESS))
    theirs, _ = asyncio.run(_crowd(count, **IN_PROCESS))
    row = latency_row("api-mass-create", mine, theirs, reference="as many in-process", target=None)
    yield row
    for name, share, target in (("p95", 0.95, None), ("p99", 0.99, Target("value", "<=", 3000.0))):
        value, other = percentile(mine, share) * 1000, percentile(theirs, share) * 1000
        met = target.met(value, None) if target else None
        yield replace(
            row,
            name=f"api-mass-create-{name}",
            value=value,
            reference_value=other,
            ratio=value / other,
            target=str(target) if target else None,
            met=met,
        )
    none = Target("value", "<=", 0.0)
    yield Row(
        "api-mass-create-failures",
        failures,
        "failures",
        None,
        None,
        count,
        "none",
        None,
        None,
        str(none),
        none.met(failures, None),
        machine(),
    )


async def _crowd(count: int, **where: str) -> tuple[list[float], int]:
    turn, seconds, failures = asyncio.Semaphore(AT_ONCE), [], 0

    async def one() -> None:
        nonlocal failures
        async with turn:
            begin = perf_counter()
            try:
                sandbox = await AsyncSandbox.create(**where)  # type: ignore[arg-type]
                await sandbox.commands.run("true")
                seconds.append(perf_counter() - begin)
                await sandbox.kill()
            except AgentEnvError:
                failures += 1

    await asyncio.gather(*(one() for _ in range(count)))
    return seconds, failures


def run_hold(scale: Scale) -> Iterator[Row]:
    """What a server with 1,000 idle sandboxes takes itself: resident memory, and processor time over a while."""
    count, seconds = scale.count(1000, 20), scale.count(20, 3)
    with served() as server:
        before = _resident(server.pid)
        asyncio.run(_fill(count, server))
        sleep(seconds)  # what the starts left to do is done
        begin, used = perf_counter(), _processor(server.pid)
        sleep(seconds)
        share = 100 * (_processor(server.pid) - used) / (perf_counter() - begin)
        memory = _resident(server.pid)
    row = _figure("api-hold-memory", memory, "MiB", count, Target("value", "<=", 300.0))
    yield replace(row, reference="the server alone", reference_value=before, ratio=memory / before)
    yield _figure("api-hold-cpu", share, "% of a core", count, Target("value", "<=", 5.0))


def _figure(name: str, value: float, unit: str, count: int, target: Target) -> Row:
    return Row(name, value, unit, None, None, count, "none", None, None, str(target), target.met(value, None), machine())


async def _fill(count: int, server: Served) -> None:
    httpx: Any = importlib.import_module("httpx")
    turn = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=server.url, headers={"X-API-Key": server.key}, timeout=600) as api:

        async def one() -> None:
            async with turn:
                (await api.post("/sandboxes", json={"templateID": "base", "timeout": 3600})).raise_for_status()

        await asyncio.gather(*(one() for _ in range(count)))


def _resident(pid: int) -> float:
    """MiB of memory that are this process's own or mapped by it (/proc/PID/status, VmRSS)."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def _processor(pid: int) -> float:
    """Seconds of processor time that this process has used (/proc/PID/stat, utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
