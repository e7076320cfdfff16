"""The owner's side of `agentenv-launch`: one small daemon that clones sandboxes, spoken to over an inherited socket.

A message is a row of NUL-ended `key=value` records; native/launch/request.c and native/launch/sandboxes.c have the list. When this
process ends, by whatever cause, the daemon kills all sandboxes and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import BackendUnavailable, InfrastructureError, Stage
from agentenv.isolation.namespace.answers import Facts, facts, parse, refused, stages

_ANSWER_MAX = 65536
_LAUNCHER_GONE = "the launcher ended"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a sandbox's first process ended, or that the launcher, and so the sandbox with it, is gone."""

    exit_code: int | None
    signal: int | None
    launcher_gone: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """A sandbox that has become the agent; `pidfd` is the caller's to close."""

    pid: int
    pidfd: int
    stages: tuple[Stage, ...]


@dataclass(slots=True)
class Launch:
    """One sandbox that was asked for: `started` and then `ended` will be answered."""

    started: asyncio.Future[Started]
    ended: asyncio.Future[Ended]


class Launcher:
    """One running daemon. Belongs to the event loop that opened it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._launches: dict[str, Launch] = {}
        self._ready: asyncio.Future[Facts] = self._loop.create_future()
        self._moved: dict[str, asyncio.Future[tuple[int, ...]]] = {}
        self._gone = False
        self._loop.add_reader(control.fileno(), self._receive)

    @classmethod
    async def open(cls, command: Sequence[str], filter_: bytes, log: Path) -> Launcher:
        """Starts the daemon by `command` (its path and options); what it prints on its standard error goes to `log`.

        Raises `BackendUnavailable` where the machine does not allow what it needs.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = os.memfd_create("agentenv-seccomp", 0)
        try:
            os.write(program, filter_)
            with log.open("ab") as output:
                words = [*command, "--control", str(theirs.fileno()), "--filter", str(program), "--owner", str(os.getpid())]
                process = subprocess.Popen(  # noqa: ASYNC220 - once per owner, and vfork makes it short
                    words,
                    pass_fds=(theirs.fileno(), program),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                    start_new_session=True,
                    cwd="/",
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(program)
        ours.setblocking(False)
        launcher = cls(process, ours)
        try:
            await launcher._ready
        except BaseException:
            await launcher.close()
            raise
        return launcher

    @property
    def alive(self) -> bool:
        """Whether it can still be asked for sandboxes."""
        return not self._gone

    def facts(self) -> Facts:
        """What the daemon found when it took up its post."""
        return self._ready.result()

    def launch(self, key: str, records: Sequence[str], descriptors: Sequence[int]) -> Launch:
        """Asks for a sandbox named `key` (unique in this process). The descriptors may be closed as soon as this returns.

        Raises `InfrastructureError` when the daemon is gone or cannot take the message.
        """
        launch = Launch(self._loop.create_future(), self._loop.create_future())
        launch.started.add_done_callback(_look_at)
        self._launches[key] = launch
        try:
            self._send(("op=launch", f"id={key}", *records), descriptors)
        except BaseException:
            del self._launches[key]
            raise
        return launch

    def kill(self, key: str) -> None:
        """Has the sandbox `key` killed, in whatever stage it is; nothing happens when it has ended."""
        if key in self._launches and not self._gone:
            self._send(("op=kill", f"id={key}"), ())

    async def choose_cores(self, key: str, count: int) -> tuple[int, ...]:
        """Chooses `count` cores (0: all) anew for a live sandbox and returns their numbers."""
        answer: asyncio.Future[tuple[int, ...]] = self._loop.create_future()
        self._moved[key] = answer
        self._send(("op=affinity", f"id={key}", f"cpus={count}"), ())
        try:
            return await answer
        finally:
            self._moved.pop(key, None)

    async def close(self) -> None:
        """Ends the daemon and with it every sandbox that is left; returns when all are gone. Idempotent."""
        if not self._gone:
            with contextlib.suppress(InfrastructureError):  # it is ending by itself
                self._send(("op=close", "id="), ())
            self._lose()
        if self._process.returncode is None:
            await _process_end(self._loop, self._process.pid)
            self._process.wait()

    def _send(self, records: Sequence[str], descriptors: Sequence[int]) -> None:
        if any("\0" in record for record in records):
            raise ValueError("a NUL character cannot be part of a path, an environment variable or a name.")
        message = "\0".join(records).encode() + b"\0"
        try:
            socket.send_fds(self._control, [message], list(descriptors))
        except OSError as error:
            raise InfrastructureError(f"the launcher cannot be asked for a sandbox: {error.strerror or error}.") from error

    def _receive(self) -> None:
        while True:
            try:
                message, descriptors, _, _ = socket.recv_fds(self._control, _ANSWER_MAX, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                self._lose()
                return
            self._handle(parse(message), descriptors)

    def _handle(self, answer: dict[str, str], descriptors: list[int]) -> None:
        key = answer.get("id", "")
        launch = self._launches.get(key)
        match answer.get("event"):
            case "ready" | "unusable":
                self._take_post(answer)
            case "started" if launch is not None and not launch.started.done():
                launch.started.set_result(Started(int(answer["pid"]), descriptors.pop(), stages(answer["stages"])))
            case "failed" if key in self._moved:
                self._moved.pop(key).set_exception(refused(answer))
            case "failed" if launch is not None and not launch.started.done():
                launch.started.set_exception(refused(answer))
                if "made" not in answer:  # else there is a process, and its end is told when it is gone
                    self._end(key, Ended(None, None))
            case "cores" if key in self._moved:
                self._moved.pop(key).set_result(tuple(int(core) for core in answer["cores"].split(",")))
            case "exit":
                code, number = answer.get("code"), answer.get("signal")
                self._end(key, Ended(int(code) if code else None, int(number) if number else None))
        for descriptor in descriptors:
            os.close(descriptor)

    def _take_post(self, answer: dict[str, str]) -> None:
        try:
            self._ready.set_result(facts(answer))
        except BackendUnavailable as error:
            self._ready.set_exception(error)

    def _end(self, key: str, ended: Ended) -> None:
        launch = self._launches.pop(key, None)
        if launch is None:
            return
        if not launch.started.done():
            launch.started.set_exception(InfrastructureError("the sandbox ended before it had become the agent."))
        if not launch.ended.done():
            launch.ended.set_result(ended)

    def _lose(self) -> None:
        """The daemon is gone or is being let go: so are its sandboxes."""
        self._gone = True
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        if not self._ready.done():
            self._ready.set_exception(BackendUnavailable("the namespace launcher ended before it was ready."))
        for waiting in self._moved.values():
            waiting.set_exception(InfrastructureError(f"{_LAUNCHER_GONE}."))
        self._moved.clear()
        for key in list(self._launches):
            self._end(key, Ended(None, signal.SIGKILL, launcher_gone=True))


def _look_at(future: asyncio.Future[Started]) -> None:
    """Marks a failure as seen: whoever asked may have been cancelled meanwhile."""
    if not future.cancelled():
        future.exception()


async def _process_end(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    """Returns when the child `pid` has ended (it stays to be reaped)."""
    descriptor = os.pidfd_open(pid)
    try:
        await readable(loop, descriptor)
    finally:
        os.close(descriptor)


async def readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    """Returns when the descriptor can be read from."""
    ready: asyncio.Future[None] = loop.create_future()

    def mark() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, mark)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
