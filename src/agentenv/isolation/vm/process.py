"""Processes of virtual machine monitors: started, listened to, watched and ended; none of them outlives the process that started it.

A `Warden` is a small process of ours that holds a pidfd of every monitor and kills them when their owner has ended, by whatever cause
(native/launch/monitor.c says why the kernel's parent-death signal is not enough).
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

from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.guest.native import binary

KEPT_OUTPUT = 64 << 10
"""Bytes of a monitor's last output that are kept."""

_CHUNK = 64 << 10
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a monitor ended: by its own exit code or by a signal."""

    exit_code: int | None
    signal: int | None

    def __str__(self) -> str:
        return f"ended with status {self.exit_code}" if self.signal is None else f"was ended by {signal.Signals(self.signal).name}"


class Monitor:
    """One running monitor. Made by `Warden.spawn`; belongs to the event loop that was running then."""

    def __init__(self, pid: int, pidfd: int, output: int) -> None:
        """Takes over both descriptors; `output` is the reading end of its standard output and error output."""
        self.pid = pid
        self._pidfd = pidfd
        self._output = output
        self._kept = bytearray()
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Ended] = self._loop.create_future()
        self._loop.add_reader(pidfd, self._settle)
        self._loop.add_reader(output, self._listen)

    @property
    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    @property
    def output(self) -> str:
        """The last `KEPT_OUTPUT` bytes that it printed, its guest's console among them where it puts that there."""
        if not self._ended.done():
            self._listen()
        return self._kept.decode(errors="replace")

    async def more(self) -> None:
        """Returns when it has printed something since the last call, or has ended. For one who waits at a time."""
        await self._news.wait()
        if not self._ended.done():
            self._news.clear()

    async def wait(self) -> Ended:
        """Returns when it has ended, by whatever cause, and has been reaped."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Sends SIGKILL; nothing happens once it has ended. `wait` tells when it has."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def end(self) -> Ended:
        """Kills it and returns when it is gone; idempotent."""
        self.kill()
        return await self.wait()

    def _listen(self) -> None:
        """Takes what has been printed; a guest that prints without end is read no faster than this loop goes round."""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._output, _CHUNK)
            self._kept += chunk
            del self._kept[:-KEPT_OUTPUT]
            self._news.set()
            if not chunk:
                self._loop.remove_reader(self._output)

    def _settle(self) -> None:
        self._loop.remove_reader(self._pidfd)
        told = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        assert told is not None, "the pidfd was readable"
        self._listen()
        self._loop.remove_reader(self._output)
        os.close(self._output)
        os.close(self._pidfd)
        self._news.set()
        exited = told.si_code == os.CLD_EXITED
        self._ended.set_result(Ended(told.si_status, None) if exited else Ended(None, told.si_status))


class Warden:
    """Starts the monitors of this process, and ends them when it has ended. One for each backend; made by `open`."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        """Takes over both. The process lives until the last copy of `control` is closed; each monitor uses one to make itself known."""
        self._process = process
        self._control = control
        self._launcher = os.fspath(binary("agentenv-launch"))

    @classmethod
    def open(cls) -> Warden:
        """Starts the process (about a millisecond). Raises `BackendUnavailable` where that cannot be."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = subprocess.Popen(
                [os.fspath(binary("agentenv-launch")), "warden"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env=_ENVIRONMENT,
            )
        except OSError as error:
            ours.close()
            raise BackendUnavailable(f"the warden of virtual machines cannot be started: {error.strerror}.") from error
        finally:
            theirs.close()
        return cls(process, ours)

    def spawn(
        self,
        command: Sequence[str],
        *,
        netns: Path | None = None,
        cwd: Path | None = None,
        groups: Sequence[Path] = (),
        descriptors: Sequence[int] = (),
        keeps_files_whole: bool = False,
        small_pages: bool = False,
    ) -> Monitor:
        """Starts `command` (an absolute path and arguments) with an empty input and its output kept; about a millisecond.

        It enters the network namespace `netns`, the directory `cwd` and the cgroups whose `entrances` are `groups` before it begins, and
        inherits `descriptors` under their numbers. With `keeps_files_whole` it punches no holes into files, though it believes so. With
        `small_pages` its memory has no huge ones, of which the kernel frees no parts. What of that fails is told by its end with status 125
        and one line of output. Raises `InfrastructureError` when the kernel gives no process, or the warden has ended.
        """
        if self._process.poll() is not None:
            raise InfrastructureError("the warden of virtual machines has ended.", remedy="Close this backend and open it anew.")
        told = self._control.fileno()
        words = [self._launcher, "monitor", f"--warden={told}", *(f"--keep={number}" for number in descriptors)]
        words += [f"--enter={path}" for path in groups]
        if netns is not None:
            words.append(f"--netns={netns}")
        if keeps_files_whole:
            words.append("--keep-files-whole")
        if small_pages:
            words.append("--small-pages")
        if cwd is not None:
            words.append(f"--chdir={cwd}")
        output, printed = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.set_blocking(printed, True)
            pid = _spawn([*words, "--", *command], printed, (told, *descriptors))
        except OSError as error:
            os.close(output)
            raise InfrastructureError(f"{command[0]} cannot be started: {error.strerror}.") from error
        finally:
            os.close(printed)
        try:
            return Monitor(pid, os.pidfd_open(pid), output)
        except BaseException:
            os.close(output)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    def close(self) -> None:
        """Ends the warden and with it every monitor that is left. Idempotent."""
        self._control.close()
        self._process.wait()


def _spawn(words: list[str], printed: int, descriptors: Sequence[int]) -> int:
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, printed, 1),
        (os.POSIX_SPAWN_DUP2, printed, 2),
        *((os.POSIX_SPAWN_DUP2, number, number) for number in descriptors),  # onto itself: it is inherited
    ]
    return os.posix_spawn(words[0], words, _ENVIRONMENT, file_actions=actions, setsid=True, setsigmask=())
