"""E2B's service `process.Process`: starting processes in a sandbox, watching and steering them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from agentenv.guest import processes
from agentenv.guest.errors import AgentFailure
from agentenv.guest.files import stat
from agentenv.guest.frames import Kind
from agentenv.guest.processes import Command, ProcessEntry, Tap
from agentenv.server.envd.connect import Call, Code, ConnectError, Service, client_stream, server_stream, unary
from agentenv.server.envd.paths import resolve
from agentenv.server.envd.programs import End, Program, Running, pieces
from agentenv.server.envd.session import Session, keepalive_of
from agentenv.server.envd.users import User
from agentenv.server.envd.wire import process_pb2 as wire

SHELL = "/bin/bash"
"""What the SDKs run every command with, be there a bash or not."""

_SIGNALS = {wire.SIGNAL_SIGKILL: 9, wire.SIGNAL_SIGTERM: 15}


class ProcessService:
    """The methods; each is about the sandbox of `session`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._programs = session.programs

    def service(self) -> Service:
        """They, ready to be served."""
        return Service(
            "process.Process",
            (
                server_stream("Start", wire.StartRequest, self.start),
                server_stream("Connect", wire.ConnectRequest, self.connect),
                unary("List", wire.ListRequest, self.list),
                unary("Update", wire.UpdateRequest, self.update),
                client_stream("StreamInput", wire.StreamInputRequest, self.stream_input),
                unary("SendInput", wire.SendInputRequest, self.send_input),
                unary("SendSignal", wire.SendSignalRequest, self.send_signal),
                unary("CloseStdin", wire.CloseStdinRequest, self.close_stdin),
            ),
            self._session.explain,
        )

    async def start(self, call: Call, request: wire.StartRequest) -> AsyncIterator[wire.StartResponse]:
        """Runs a program and tells what it prints; it ends with the time that the client granted, not with the client."""
        user = await self._session.caller(call)
        command = self._command(call, request, user)
        running = Running(
            self._session.link,
            Program("exec"),
            self._session.link.kills_seen,
            argv=tuple(command.argv or ()),
            envs=dict(request.process.envs),
            cwd=request.process.cwd if request.process.HasField("cwd") else None,
            tag=request.tag if request.HasField("tag") else None,
            pty=command.pty is not None,
            stdin=command.stdin,
        )
        tap = await self._launch(command, running)
        async for event in _events(running, tap, keepalive_of(call.headers)):
            yield wire.StartResponse(event=event)

    async def connect(self, call: Call, request: wire.ConnectRequest) -> AsyncIterator[wire.ConnectResponse]:
        """Tells what a process prints from now on, and how it ends."""
        running = await self._selected(request.process)
        async for event in _events(running, running.program.tap(), keepalive_of(call.headers)):
            yield wire.ConnectResponse(event=event)

    async def list(self, call: Call, request: wire.ListRequest) -> wire.ListResponse:
        """The processes that run."""
        return wire.ListResponse(processes=[_info(one) for one in await self._programs.list()])

    async def update(self, call: Call, request: wire.UpdateRequest) -> wire.UpdateResponse:
        """Tells a terminal its new size."""
        running = await self._selected(request.process)
        if request.HasField("pty"):
            if not running.pty:
                raise ConnectError(Code.FAILED_PRECONDITION, f"process {running.pid} has no terminal")
            running.program.resize(*_size(request.pty))
        return wire.UpdateResponse()

    async def send_input(self, call: Call, request: wire.SendInputRequest) -> wire.SendInputResponse:
        """Writes to a process's standard input, or types into its terminal."""
        await _feed(await self._selected(request.process), request.input)
        return wire.SendInputResponse()

    async def stream_input(self, call: Call, requests: AsyncIterator[wire.StreamInputRequest]) -> wire.StreamInputResponse:
        """Writes to one process in the order of the stream."""
        running: Running | None = None
        async for request in requests:
            event = request.WhichOneof("event")
            if event == "start":
                running = await self._selected(request.start.process)
            elif event == "data" and running is not None:
                await _feed(running, request.data.input)
            elif event != "keepalive":
                raise ConnectError(Code.INVALID_ARGUMENT, f"a stream of input begins with `start`, not with {event!r}")
        return wire.StreamInputResponse()

    async def send_signal(self, call: Call, request: wire.SendSignalRequest) -> wire.SendSignalResponse:
        """Ends a process and its group, by force or by asking."""
        number = _SIGNALS.get(request.signal)
        if number is None:
            raise ConnectError(Code.UNIMPLEMENTED, f"the signal {request.signal} is not known; SIGKILL and SIGTERM are")
        running = await self._selected(request.process)
        if running.program.over or not await processes.signal(self._session.link.connection(), running.pid, number):
            raise ConnectError(Code.NOT_FOUND, f"process with pid {running.pid} not found")
        return wire.SendSignalResponse()

    async def close_stdin(self, call: Call, request: wire.CloseStdinRequest) -> wire.CloseStdinResponse:
        """Ends a process's standard input."""
        running = await self._selected(request.process)
        if running.pty:
            raise ConnectError(Code.FAILED_PRECONDITION, "the input of a terminal is ended by typing Ctrl-D (0x04) into it")
        async with running.input_lock:
            running.program.end()
            running.stdin = False
        return wire.CloseStdinResponse()

    def _command(self, call: Call, request: wire.StartRequest, user: User) -> Command:
        if not request.process.cmd:
            raise ConnectError(Code.INVALID_ARGUMENT, "`process.cmd` is empty; it is the program to run")
        pty = request.HasField("pty")
        return Command(
            argv=(request.process.cmd, *request.process.args),
            env={**self._session.envs, **request.process.envs},
            cwd=resolve(request.process.cwd, user, self._session.default_workdir),
            user=user.name,
            stdin=pty or request.stdin or not request.HasField("stdin"),
            pty=_size(request.pty) if pty else None,
            timeout=call.timeout or None,
            keep=True,
            tag=request.tag if request.HasField("tag") else None,
        )

    async def _launch(self, command: Command, running: Running) -> Tap:
        try:
            return await self._programs.start(command, running)
        except AgentFailure as failure:
            if failure.code != "ENOENT":
                raise ConnectError(Code.INVALID_ARGUMENT, f"{running.argv[0]} cannot be started: {failure.detail}") from failure
        await self._require_directory(command.cwd or "/")
        plain = _without_bash(running.argv)
        if plain is None:
            raise ConnectError(Code.INVALID_ARGUMENT, f"{running.argv[0]} is not there, so that it cannot be started")
        running.program = Program("exec")
        try:
            return await self._programs.start(replace(command, argv=plain), running)
        except AgentFailure as failure:
            raise ConnectError(Code.INVALID_ARGUMENT, f"neither {SHELL} nor /bin/sh can be started: {failure.detail}") from failure

    async def _require_directory(self, path: str) -> None:
        try:
            await stat(self._session.link.connection(), path)
        except AgentFailure as failure:
            raise ConnectError(Code.INVALID_ARGUMENT, f"cwd '{path}' does not exist") from failure

    async def _selected(self, selector: wire.ProcessSelector) -> Running:
        chosen = selector.WhichOneof("selector")
        if chosen is None:
            raise ConnectError(Code.INVALID_ARGUMENT, "`process` names no process; give its `pid` or its `tag`")
        return await (self._programs.find(pid=selector.pid) if chosen == "pid" else self._programs.find(tag=selector.tag))


async def _events(running: Running, tap: Tap, interval: float) -> AsyncIterator[wire.ProcessEvent]:
    """All that happens to a process, with a sign of life in each `interval` seconds of silence."""
    yield wire.ProcessEvent(start=wire.ProcessEvent.StartEvent(pid=running.pid))
    async for piece in pieces(tap, interval):
        if piece is None:
            yield wire.ProcessEvent(keepalive=wire.ProcessEvent.KeepAlive())
        else:
            yield wire.ProcessEvent(data=_data(*piece, pty=running.pty))
    end = await running.ended()
    if end.timed_out:
        raise ConnectError(Code.DEADLINE_EXCEEDED, "the process was ended, because the time that was granted to it is over")
    yield wire.ProcessEvent(end=_end(end))


def _data(kind: Kind, piece: bytes, *, pty: bool) -> wire.ProcessEvent.DataEvent:
    if pty:
        return wire.ProcessEvent.DataEvent(pty=piece)
    return wire.ProcessEvent.DataEvent(stdout=piece) if kind is Kind.DATA else wire.ProcessEvent.DataEvent(stderr=piece)


def _end(end: End) -> wire.ProcessEvent.EndEvent:
    return wire.ProcessEvent.EndEvent(exit_code=end.exit_code, exited=end.exited, status=end.status, error=end.error)


def _size(pty: wire.PTY) -> tuple[int, int]:
    """Rows and columns; the kernel's terminals have at most 65535 of each, and none is of no size."""
    rows, cols = pty.size.rows or 24, pty.size.cols or 80
    if rows > 65_535 or cols > 65_535:
        raise ConnectError(Code.INVALID_ARGUMENT, f"a terminal of {rows} rows and {cols} columns is too large; 65535 are the most")
    return rows, cols


def _without_bash(argv: tuple[str, ...]) -> tuple[str, ...] | None:
    """What the SDKs run with bash, for images that have none; None for anything else."""
    if argv[0] != SHELL:
        return None
    return ("/bin/sh", *(word for word in argv[1:] if word != "-l" or "-c" in argv))


def _info(one: Running | ProcessEntry) -> wire.ProcessInfo:
    config = wire.ProcessConfig(cmd=one.argv[0] if one.argv else "", args=one.argv[1:], cwd=one.cwd)
    if isinstance(one, Running):
        config.envs.update(one.envs)
    return wire.ProcessInfo(config=config, pid=one.pid, tag=one.tag)


async def _feed(running: Running, content: wire.ProcessInput) -> None:
    kind = content.WhichOneof("input")
    if kind is None:
        raise ConnectError(Code.INVALID_ARGUMENT, "`input` is empty; it is `stdin` or `pty`")
    if (kind == "pty") != running.pty:
        raise ConnectError(
            Code.FAILED_PRECONDITION,
            f"process {running.pid} {'has a terminal: send `pty`' if running.pty else 'has no terminal: send `stdin`'}",
        )
    if not running.stdin:
        raise ConnectError(Code.FAILED_PRECONDITION, f"the standard input of process {running.pid} is closed, or was never open")
    async with running.input_lock:
        await running.program.send(content.pty if running.pty else content.stdin)
