"""The control socket of an owner, through which other processes of the same user ask it to act on its sandboxes.

Only the owner can freeze, copy or resize what it owns; `agentenv fork ID` in another terminal asks it. One request and one answer a
connection, each one JSON object on a line; who may open the socket is a matter of its directory's mode (0700).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

import agentenv.errors as errors
from agentenv.egress.policy import EgressPolicy
from agentenv.errors import AgentEnvError, InvalidState, ProtocolError, SandboxDied, Stage, StartupTimeout
from agentenv.isolation.contract import OomKill, Resources
from agentenv.node.sandbox import NodeSandbox

SOCKET = "control.sock"
LONGEST_LINE = 1 << 20


class Request(msgspec.Struct, frozen=True):
    """What is asked of which sandbox."""

    call: str
    sandbox: str
    arguments: dict[str, Any] = {}


class Fault(msgspec.Struct, frozen=True):
    """An error of the owner, to be raised again by who asked."""

    type: str
    message: str
    remedy: str | None = None
    fields: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True):
    """Either a result or a fault."""

    result: Any = None
    fault: Fault | None = None


class Child(msgspec.Struct, frozen=True):
    """One outcome of a fork: the id of a child, or why it did not start."""

    id: str | None = None
    fault: Fault | None = None


async def _fork(sandbox: NodeSandbox, arguments: Mapping[str, Any]) -> list[Child]:
    children = await sandbox.fork(arguments["count"], arguments.get("memory"))
    return [Child(fault=describe(child)) if isinstance(child, AgentEnvError) else Child(id=child.id) for child in children]


async def _now(value: Any) -> Any:
    return value


CALLS: Mapping[str, Callable[[NodeSandbox, Mapping[str, Any]], Awaitable[Any]]] = {
    "pause": lambda sandbox, arguments: sandbox.pause(arguments.get("to_disk", False)),
    "resume": lambda sandbox, _: sandbox.resume(),
    "resize": lambda sandbox, arguments: sandbox.resize(msgspec.convert(arguments["resources"], Resources)),
    "capabilities": lambda sandbox, _: _now(sandbox.capabilities),
    "usage": lambda sandbox, _: sandbox.usage(),
    "snapshot": lambda sandbox, arguments: sandbox.snapshot(arguments["name"], arguments.get("memory")),
    "rollback": lambda sandbox, arguments: sandbox.rollback(arguments["snapshot"], arguments.get("memory")),
    "host_port": lambda sandbox, arguments: sandbox.host_port(arguments["port"]),
    "oom_kills": lambda sandbox, _: sandbox.machine.oom_kills(),
    "process_limit_hits": lambda sandbox, _: sandbox.machine.process_limit_hits(),
    "storage_kills": lambda sandbox, _: sandbox.storage_kills(),
    "fork": _fork,
    "set_network": lambda sandbox, arguments: sandbox.set_network(EgressPolicy.from_dict(arguments["policy"])),
    "network_log": lambda sandbox, _: sandbox.network_log(),
    "set_lifetime": lambda sandbox, arguments: sandbox.set_lifetime(arguments["seconds"]),
}


class ControlServer:
    """Answers on the control socket of one owner until it is closed."""

    def __init__(self, sandbox_of: Callable[[str], NodeSandbox]) -> None:
        self._sandbox_of = sandbox_of
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self, directory: Path) -> None:
        """Listens in `directory`, the owner's own."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            _at_short_path(directory, listener.bind)
            listener.setblocking(False)
            self._server = await asyncio.start_unix_server(self._answer, sock=listener, limit=LONGEST_LINE)
        except BaseException:
            listener.close()
            raise

    async def drain(self) -> None:
        """Returns when no request is under way."""
        while self._answering:
            await asyncio.wait(self._answering)

    async def close(self) -> None:
        """Takes no further request and lets go of those under way; idempotent."""
        if self._server is not None:
            self._server.close()
        for task in tuple(self._answering):
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            line = await reader.readline()
            if line:
                writer.write(msgspec.json.encode(await self._act(line)) + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            pass  # who asked has gone, or sent a line without end: nobody waits for an answer
        finally:
            self._answering.discard(task)
            writer.close()

    async def _act(self, line: bytes) -> Answer:
        try:
            request = msgspec.json.decode(line, type=Request)
            call = CALLS[request.call]
        except (msgspec.DecodeError, KeyError) as error:
            return Answer(fault=describe(ProtocolError(f"the control socket does not understand {line[:200]!r} ({error}).")))
        try:
            return Answer(result=await call(self._sandbox_of(request.sandbox), request.arguments))
        except AgentEnvError as error:
            return Answer(fault=describe(error))
        except (KeyError, TypeError, msgspec.ValidationError) as error:
            return Answer(fault=describe(ProtocolError(f"the arguments of {request.call!r} do not fit: {error}.")))


async def ask(owner: Path, call: str, sandbox: str, **arguments: Any) -> Any:
    """Asks the owner with that directory to act on one of its sandboxes, and returns the result as plain data.

    Raises what the owner raised, or `InvalidState` when the owner is gone.
    """
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        _at_short_path(owner, connection.connect)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LONGEST_LINE)
    except OSError as error:
        connection.close()
        raise InvalidState(
            f"the process that owns sandbox {sandbox} does not answer ({error.strerror}).", remedy="Create another one."
        ) from error
    try:
        writer.write(msgspec.json.encode(Request(call, sandbox, arguments)) + b"\n")
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise InvalidState(f"the process that owns sandbox {sandbox} ended before it answered.", remedy="Create another one.")
    answer = msgspec.json.decode(line, type=Answer)
    if answer.fault is not None:
        raise restored(answer.fault)
    return answer.result


def describe(error: AgentEnvError) -> Fault:
    """An error as plain data."""
    fields = {name: value for name, value in vars(error).items() if name not in ("message", "remedy")}
    return Fault(type(error).__name__, error.message, error.remedy, msgspec.to_builtins(fields, enc_hook=str, str_keys=True))


def restored(fault: Fault) -> AgentEnvError:
    """The error that `describe` was given. What was no plain data in its fields is the text of it."""
    kind: type[AgentEnvError] = getattr(errors, fault.type, AgentEnvError)
    error = kind.__new__(kind)
    # Each kind puts its message together from facts of its own; here the message is there already.
    AgentEnvError.__init__(error, fault.message, remedy=fault.remedy)
    vars(error).update(fault.fields)
    if isinstance(error, StartupTimeout):
        error.timings = msgspec.convert(error.timings, tuple[Stage, ...])
    if isinstance(error, SandboxDied) and "oom_kills" in error.evidence:
        error.evidence = {**error.evidence, "oom_kills": msgspec.convert(error.evidence["oom_kills"], tuple[OomKill, ...])}
    return error


def _at_short_path(directory: Path, use: Callable[[str], None]) -> None:
    # A socket's address holds 107 bytes; through a descriptor of its directory the path is always short.
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)
