"""The synchronous face of the sandbox. Derived by scripts/derive_sync.py from the asynchronous one: change that one.

Every method does what the one of the same name of the `Async` class does, in the loop in the background, and waits for it.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, overload

from agentenv.egress.denials import Denial
from agentenv.egress.policy import EgressPolicy
from agentenv.errors import (
    AgentEnvError,
    Stage,
)
from agentenv.isolation.contract import Capabilities, Resources, Timeouts, Usage
from agentenv.node import NetworkRequest
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox.command_handle import AsyncCommandHandle, AsyncOutput
from agentenv.sandbox.commands import AsyncCommands
from agentenv.sandbox.files import AsyncFiles
from agentenv.sandbox.loop_thread import LoopThread, in_thread
from agentenv.sandbox.pty import AsyncPty
from agentenv.sandbox.results import (
    CommandResult,
    EntryInfo,
    FileContent,
    FilesystemEvent,
    OutputCallback,
    OutputPiece,
    ProcessInfo,
    PtySize,
    SandboxInfo,
    Transfer,
    WatchCallback,
    WriteEntry,
    WriteInfo,
)
from agentenv.sandbox.runtime import runtime
from agentenv.sandbox.sandbox import AsyncSandbox
from agentenv.sandbox.shell import AsyncShell
from agentenv.sandbox.watch import AsyncWatchHandle


class CommandHandle:
    """A command in the background, or a terminal. It goes on when the handle is dropped; `commands.connect(pid)` finds it again.

    Iterating gives its output live, from what is still kept of its beginning: `for stdout, stderr, pty in handle`.
    """

    def __init__(self, face: AsyncCommandHandle, loop: LoopThread) -> None:
        self._face = face
        self._loop = loop

    @property
    def pid(self) -> int:
        """Its process number in the sandbox."""
        return self._face.pid

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._face.stdout

    @property
    def stderr(self) -> str:
        """What it has printed to its standard error so far."""
        return self._face.stderr

    @property
    def exit_code(self) -> int | None:
        """How it ended, None while it runs or before anybody has waited for it."""
        return self._face.exit_code

    def wait(
        self,
        *,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_pty: Callable[[bytes], Any] | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Waits for its end; callbacks get what it printed and prints. A cancelled waiter leaves it running.

        Raises `CommandTimeout`, `OutOfMemory` and other limits, `SandboxDied`, with `check` also `CommandError`.
        """
        return self._loop.run(
            self._face.wait(on_stdout=in_thread(on_stdout), on_stderr=in_thread(on_stderr), on_pty=in_thread(on_pty), check=check)
        )

    def kill(self) -> bool:
        """Ends it and its process group with SIGKILL; False when it had ended already."""
        return self._loop.run(self._face.kill())

    def send_signal(self, number: int) -> bool:
        """Sends a signal to its process group; False when it had ended already."""
        return self._loop.run(self._face.send_signal(number))

    def send_stdin(self, data: str | bytes) -> None:
        """Writes to its standard input (of a terminal: types). Waits while the program does not read."""
        self._loop.run(self._face.send_stdin(data))

    def close_stdin(self) -> None:
        """Ends its standard input. Idempotent."""
        self._loop.run(self._face.close_stdin())

    def resize(self, rows: int, cols: int) -> None:
        """Tells a terminal its new size."""
        self._loop.run(self._face.resize(rows, cols))

    def disconnect(self) -> None:
        """Lets go of the command, which runs on. Idempotent."""
        self._loop.run(self._face.disconnect())

    def __iter__(self) -> Output:
        return cast("Output", _lift(self._loop.call(self._face.__aiter__), self._loop))


class Output:
    """The live output of a command: an asynchronous iterator of `OutputPiece`."""

    def __init__(self, face: AsyncOutput, loop: LoopThread) -> None:
        self._face = face
        self._loop = loop

    def __iter__(self) -> Output:
        return self

    def __next__(self) -> OutputPiece:
        try:
            return self._loop.run(self._face.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


class Commands:
    """`sandbox.commands`."""

    def __init__(self, face: AsyncCommands, loop: LoopThread) -> None:
        self._face = face
        self._loop = loop

    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[False] = False,
        envs: Mapping[str, str] | None = None,
        user: str | int | None = None,
        cwd: str | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        stdin: bool | str | bytes = False,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        login: bool = False,
        check: bool = False,
        tag: str | None = None,
    ) -> CommandResult: ...

    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[True],
        envs: Mapping[str, str] | None = None,
        user: str | int | None = None,
        cwd: str | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        stdin: bool | str | bytes = False,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        login: bool = False,
        check: bool = False,
        tag: str | None = None,
    ) -> CommandHandle: ...

    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: bool = False,
        envs: Mapping[str, str] | None = None,
        user: str | int | None = None,
        cwd: str | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        stdin: bool | str | bytes = False,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        login: bool = False,
        check: bool = False,
        tag: str | None = None,
    ) -> CommandResult | CommandHandle:
        """Runs a command: a string in the sandbox's shell (bash where there is one), a sequence of strings as it is.

        A string of plain words that names a program is run as that program: the shell would do nothing else.

        Waits for its end and returns the result; a non-zero exit is a result, unless `check`. With `background` returns a handle
        as soon as it runs.
        `timeout` (seconds in all) and `idle_timeout` (seconds without output) end the command; what it had printed is in the error.
        `stdin`: its standard input as text or bytes, or True to send it later through the handle; otherwise it is empty.
        Without `cwd` it begins in the sandbox's working directory, but as another `user` than root and the sandbox's in that one's home.
        `login` reads the shell's profile first. The callbacks, plain or coroutine functions, get the output as it comes.

        Raises `CommandTimeout`, `CommandError` (with `check`), `OutOfMemory`, `ProcessLimit`, `StorageFull`, `SandboxDied`, `InvalidState`,
        and `SandboxFileError` when the program or `cwd` does not exist.
        """
        return cast(
            "CommandResult | CommandHandle",
            _lift(
                self._loop.run(
                    cast("Any", self._face).run(
                        cmd,
                        background=background,
                        envs=envs,
                        user=user,
                        cwd=cwd,
                        on_stdout=in_thread(on_stdout),
                        on_stderr=in_thread(on_stderr),
                        stdin=stdin,
                        timeout=timeout,
                        idle_timeout=idle_timeout,
                        login=login,
                        check=check,
                        tag=tag,
                    )
                ),
                self._loop,
            ),
        )

    def list(self) -> list[ProcessInfo]:
        """The running commands and terminals of this sandbox, of every handle."""
        return self._loop.run(self._face.list())

    def kill(self, pid: int) -> bool:
        """Ends a command and its process group with SIGKILL; False when there is none with that number."""
        return self._loop.run(self._face.kill(pid))

    def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Writes to the standard input of a command that was started with `stdin=True`, here or by another handle. Raises `NotFound`."""
        self._loop.run(self._face.send_stdin(pid, data))

    def connect(self, pid: int) -> CommandHandle:
        """A handle on a command in the background; its live output now comes here. Raises `NotFound`."""
        return cast("CommandHandle", _lift(self._loop.run(self._face.connect(pid)), self._loop))


class Files:
    """`sandbox.files`.

    Paths are the sandbox's; failures are `SandboxFileError` with an errno's name in `code`, a full disk `StorageFull`.
    """

    def __init__(self, face: AsyncFiles, loop: LoopThread) -> None:
        self._face = face
        self._loop = loop

    @overload
    def read(self, path: str, format: Literal["text"] = "text", *, user: str | int | None = None) -> str: ...

    @overload
    def read(self, path: str, format: Literal["bytes"], *, user: str | int | None = None) -> bytes: ...

    @overload
    def read(self, path: str, format: Literal["stream"], *, user: str | int | None = None) -> Iterator[bytes]: ...

    def read(
        self, path: str, format: Literal["text", "bytes", "stream"] = "text", *, user: str | int | None = None
    ) -> str | bytes | Iterator[bytes]:
        """A file's content: as text (UTF-8; what is no UTF-8 is replaced), as bytes, or as a stream of pieces, read as it is consumed."""
        return cast(
            "str | bytes | Iterator[bytes]", _lift(self._loop.run(cast("Any", self._face).read(path, format, user=user)), self._loop)
        )

    def write(
        self, path: str, data: FileContent, *, user: str | int | None = None, mode: int | None = None, append: bool = False
    ) -> WriteInfo:
        """Writes a file from text, bytes, an open file or an iterator of bytes; missing directories are made.

        The old content is replaced at once when all has come, so that a broken-off write leaves it as it was. `mode`: permissions
        of a new file.
        """
        return self._loop.run(self._face.write(path, data, user=user, mode=mode, append=append))

    def write_files(self, files: Iterable[WriteEntry | tuple[str, FileContent]], *, user: str | int | None = None) -> list[WriteInfo]:
        """Writes several files, several at a time; the first failure stops the rest."""
        return self._loop.run(self._face.write_files(files, user=user))

    def list(self, path: str, depth: int = 1) -> list[EntryInfo]:
        """What is in a directory, down to `depth` levels."""
        return self._loop.run(self._face.list(path, depth))

    def exists(self, path: str) -> bool:
        """Whether there is anything at a path (a link that points nowhere is something)."""
        return self._loop.run(self._face.exists(path))

    def get_info(self, path: str, *, follow: bool = False) -> EntryInfo:
        """What is at a path; with `follow`, what a link there points to."""
        return self._loop.run(self._face.get_info(path, follow=follow))

    def make_dir(self, path: str, *, user: str | int | None = None, mode: int | None = None) -> bool:
        """Makes a directory and those above it; False when it was there already."""
        return self._loop.run(self._face.make_dir(path, user=user, mode=mode))

    def rename(self, old_path: str, new_path: str) -> EntryInfo:
        """Renames or moves; what is at `new_path` is replaced as by rename(2). Returns what is there now."""
        return self._loop.run(self._face.rename(old_path, new_path))

    def remove(self, path: str, *, missing_ok: bool = False) -> None:
        """Removes a file, or a directory with all that is in it."""
        self._loop.run(self._face.remove(path, missing_ok=missing_ok))

    def chmod(self, path: str, mode: int) -> None:
        """Sets the permissions."""
        self._loop.run(self._face.chmod(path, mode))

    def chown(self, path: str, user: str | int) -> None:
        """Sets the owner."""
        self._loop.run(self._face.chown(path, user))

    def symlink(self, path: str, target: str) -> None:
        """Makes a symbolic link at `path` that points to `target`."""
        self._loop.run(self._face.symlink(path, target))

    def watch_dir(self, path: str, on_event: WatchCallback | None = None, *, recursive: bool = False) -> WatchHandle:
        """Watches a directory. Changes go to `on_event` (a plain or coroutine function), or else are read by iterating over the handle."""
        return cast("WatchHandle", _lift(self._loop.run(self._face.watch_dir(path, in_thread(on_event), recursive=recursive)), self._loop))

    def upload_dir(self, local_path: str | Path, path: str, *, exclude: Sequence[str] = (), user: str | int | None = None) -> Transfer:
        """Copies the content of a directory of this machine into one of the sandbox, which is made if missing.

        `exclude`: shell patterns that a name, or a path relative to `local_path`, must not match (`["*.pyc", ".git"]`).
        """
        return self._loop.run(self._face.upload_dir(local_path, path, exclude=exclude, user=user))

    def download_dir(self, path: str, local_path: str | Path, *, exclude: Sequence[str] = (), max_bytes: int | None = None) -> Transfer:
        """Copies the content of a directory of the sandbox into one of this machine, which is made if missing.

        Nothing outside `local_path` can be touched, whatever the sandbox sends: devices and links that would leave it are left out
        and named in the result. `max_bytes` bounds the content; more raises `SandboxFileError` (EFBIG).
        """
        return self._loop.run(self._face.download_dir(path, local_path, exclude=exclude, max_bytes=max_bytes))


class WatchHandle:
    """Gives the changes of a directory: to the callback it was made with, or to `for event in handle`, until `stop()`."""

    def __init__(self, face: AsyncWatchHandle, loop: LoopThread) -> None:
        self._face = face
        self._loop = loop

    def stop(self) -> None:
        """Ends the watch, once the callback has had all changes seen so far. Raises what the callback raised. Idempotent."""
        self._loop.run(self._face.stop())

    def get_new_events(self) -> list[FilesystemEvent]:
        """The changes since the last call, without waiting."""
        return self._loop.run(self._face.get_new_events())

    def __iter__(self) -> WatchHandle:
        return self

    def __next__(self) -> FilesystemEvent:
        try:
            return self._loop.run(self._face.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


class Pty:
    """`sandbox.pty`. A terminal is a command whose output is bytes: `for _, _, data in handle`, or `handle.wait(on_pty=…)`."""

    def __init__(self, face: AsyncPty, loop: LoopThread) -> None:
        self._face = face
        self._loop = loop

    def create(
        self,
        size: PtySize | tuple[int, int] = (24, 80),
        *,
        cmd: str | Sequence[str] | None = None,
        user: str | int | None = None,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandHandle:
        """Starts a program on a new terminal of `size` (rows, columns); without `cmd` the sandbox's shell.

        `TERM` is `xterm-256color` unless `envs` says otherwise. `timeout`: seconds until it is ended.
        """
        return cast(
            "CommandHandle",
            _lift(self._loop.run(self._face.create(size, cmd=cmd, user=user, cwd=cwd, envs=envs, timeout=timeout)), self._loop),
        )

    def connect(self, pid: int) -> CommandHandle:
        """A handle on a terminal that already runs; what it shows from now on comes here. Raises `NotFound`."""
        return cast("CommandHandle", _lift(self._loop.run(self._face.connect(pid)), self._loop))

    def send_stdin(self, pid: int, data: str | bytes) -> None:
        """Types into a terminal. Raises `NotFound`."""
        self._loop.run(self._face.send_stdin(pid, data))

    def resize(self, pid: int, size: PtySize | tuple[int, int]) -> None:
        """Tells a terminal its new size (rows, columns). Raises `NotFound`."""
        self._loop.run(self._face.resize(pid, size))

    def kill(self, pid: int) -> bool:
        """Ends a terminal and all that runs on it; False when there is none with that number."""
        return self._loop.run(self._face.kill(pid))


class Shell:
    """`sandbox.shell()`: one bash, one command at a time (others wait their turn)."""

    def __init__(self, face: AsyncShell, loop: LoopThread) -> None:
        self._face = face
        self._loop = loop

    def start(self) -> None:
        """Starts the bash now, so that a missing one is known at once. Raises `CapabilityError`."""
        self._loop.run(self._face.start())

    def run(
        self,
        cmd: str,
        *,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command, or several lines, in the shell as it was left by the command before.

        Its standard input is empty. A syntax error, like any other failure, is a result with a non-zero `exit_code`. A command
        that ends the shell
        (`exit`, `exec`) gives its status and `restarted`: the next one starts in a fresh shell. After `timeout` seconds in all, or
        `idle_timeout` without output, it is interrupted as by Ctrl-C; where it does not heed that, the shell is ended with it.

        Raises `CommandTimeout` (with the output so far, and whether the shell was `restarted`), `CommandError` with `check`,
        `OutOfMemory` and other limits, `SandboxDied`, `InvalidState` after `close()`.
        """
        return self._loop.run(
            self._face.run(
                cmd, timeout=timeout, idle_timeout=idle_timeout, on_stdout=in_thread(on_stdout), on_stderr=in_thread(on_stderr), check=check
            )
        )

    def interrupt(self) -> None:
        """Interrupts the command that runs, as Ctrl-C does; the shell stays."""
        self._loop.run(self._face.interrupt())

    def close(self) -> None:
        """Ends the shell and everything it left in the background. Idempotent."""
        self._loop.run(self._face.close())

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._face.__aexit__(*_))


class Sandbox:
    """One isolated machine: `with Sandbox.create() as sandbox: …`.

    It ends with `kill()`, with the `with` block, with its lifetime, or with the process that made it. Everything but `kill` raises
    `SandboxDied` (or the limit that explains it) once it is dead, and `InvalidState` once it was ended on purpose.
    """

    def __init__(self, face: AsyncSandbox, loop: LoopThread) -> None:
        self._face = face
        self._loop = loop

    @classmethod
    def create(
        cls,
        image: str | None = None,
        *,
        snapshot: str | Snapshot | None = None,
        memory: bool | None = None,
        isolation: str = "auto",
        resources: Resources | Mapping[str, Any] | None = None,
        network: bool | NetworkRequest | Mapping[str, Any] = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        server: str | None = None,
        api_key: str | None = None,
    ) -> Sandbox:
        """Starts a sandbox and returns when its agent answers.

        `image`: `host` (this machine's programs), `debian`, `REGISTRY/NAME:TAG`, `template:NAME`, `dir:PATH`, … (docs/images.md); None is
        the backend's own: `debian` for a virtual machine, else `host`. With `snapshot` (its name, id, or itself) it is the snapshot's. A
        template's start command runs, and is ready, when this returns.
        `memory`: whether the snapshot's processes go on; None is "where it holds them", False starts from its files only.
        `isolation`: a backend's name, or `auto` for the strongest usable. `resources`: limits, as `Resources` or a mapping such as
        `{"cpu": 2, "memory": "4GB"}`. `network`: False (loopback only), True, or a mapping as in a configuration (docs/network.md):
        `{"enabled": True, "ports": [8080], "allow_internet_access": False, "allow": ["example.org", "10.1.2.3:5432"]}`.
        `env` is every process's. `timeout`: the sandbox's lifetime in seconds (None: no end but this process's). `timeouts`: for its start
        and end. `server` and `api_key`: where it is made, by default what AGENTENV_SERVER and AGENTENV_API_KEY say, else this machine.

        Raises `StartupTimeout`, `BackendUnavailable`, `NotFound`, `CapabilityError`, `ConfigError` and other `AgentEnvError`.
        """
        loop = runtime().background
        return cast(
            "Sandbox",
            _lift(
                loop.run(
                    AsyncSandbox.create(
                        image,
                        snapshot=snapshot,
                        memory=memory,
                        isolation=isolation,
                        resources=resources,
                        network=network,
                        env=env,
                        timeout=timeout,
                        metadata=metadata,
                        timeouts=timeouts,
                        server=server,
                        api_key=api_key,
                    )
                ),
                loop,
            ),
        )

    @classmethod
    def connect(cls, sandbox_id: str, *, server: str | None = None, api_key: str | None = None) -> Sandbox:
        """A handle on a sandbox that there is already, also one of another process of this user. Raises `NotFound`.

        What changes the machine itself (pause, resize, snapshot, fork, …) is done by the process that owns it, which is asked; the children
        of a fork belong to that process too. One that is paused to the disk and whose process has ended becomes this process's.
        `server` and `api_key` are those of `create`.
        """
        loop = runtime().background
        return cast("Sandbox", _lift(loop.run(AsyncSandbox.connect(sandbox_id, server=server, api_key=api_key)), loop))

    @classmethod
    def list(cls, *, server: str | None = None, api_key: str | None = None) -> list[SandboxInfo]:
        """Every sandbox of this AGENTENV_HOME, or of the key's tenant on a server, living or paused to the disk, the oldest first."""
        loop = runtime().background
        return loop.run(AsyncSandbox.list(server=server, api_key=api_key))

    @property
    def id(self) -> str:
        """Its id: letters and digits, also its host name."""
        return self._face.id

    @property
    def commands(self) -> Commands:
        """Runs commands."""
        return cast("Commands", _lift(self._face.commands, self._loop))

    @property
    def files(self) -> Files:
        """Reads and writes files."""
        return cast("Files", _lift(self._face.files, self._loop))

    @property
    def pty(self) -> Pty:
        """Opens terminals."""
        return cast("Pty", _lift(self._face.pty, self._loop))

    @property
    def timings(self) -> tuple[Stage, ...]:
        """How long each stage of its start took."""
        return self._face.timings

    @property
    def generation(self) -> int:
        """1, and one more with each rollback and each return from the disk: connections belong to one generation."""
        return self._face.generation

    @property
    def state(self) -> str:
        """`running`, `paused`, `hibernated` (paused to the disk) or `dead`."""
        return self._face.state

    @property
    def capabilities(self) -> Capabilities:
        """What its backend can do with it on this machine: whether a snapshot can hold its memory, say."""
        return self._face.capabilities

    @property
    def metadata(self) -> dict[str, str]:
        """What its maker noted on it."""
        return self._face.metadata

    def shell(self, *, cwd: str | None = None, envs: Mapping[str, str] | None = None, user: str | int | None = None) -> Shell:
        """A persistent bash: directory, variables and functions stay from one `run` to the next.

        Raises `CapabilityError` without a bash.
        """
        return cast("Shell", _lift(self._loop.run(self._face.shell(cwd=cwd, envs=envs, user=user)), self._loop))

    def upload_dir(self, local_path: str | Path, path: str, *, exclude: Sequence[str] = (), user: str | int | None = None) -> Transfer:
        """`files.upload_dir`: copies the content of a directory of this machine into one of the sandbox."""
        return self._loop.run(self._face.upload_dir(local_path, path, exclude=exclude, user=user))

    def download_dir(self, path: str, local_path: str | Path, *, exclude: Sequence[str] = (), max_bytes: int | None = None) -> Transfer:
        """`files.download_dir`: copies the content of a directory of the sandbox into one of this machine."""
        return self._loop.run(self._face.download_dir(path, local_path, exclude=exclude, max_bytes=max_bytes))

    def dial(self, target: int | str) -> socket.socket:
        """A plain blocking socket into the sandbox: to a port of its loopback, or to the path of a unix socket in it (`@name`: abstract).

        Raises `ConnectionRefusedError` or `FileNotFoundError` where nobody listens, `SandboxDied`, `InvalidState`.
        """
        return self._loop.run(self._face.dial(target))

    def get_host(self, port: int) -> str:
        """Where a port of the sandbox is reached from this machine, as `127.0.0.1:PORT`; a server may come to listen there later."""
        return self._loop.run(self._face.get_host(port))

    def pause(self, *, to_disk: bool = False) -> None:
        """Freezes every process; memory and files stay. Nothing happens when it is paused already.

        With `to_disk` it is written to the disk and takes neither memory nor processors until `resume()`, also by another process after
        this one has ended (`connect(id)`). Its lifetime stands still meanwhile. Connections and command handles end. Raises
        `CapabilityError` where memory cannot be written down, `StorageFull`; then it goes on.
        """
        self._loop.run(self._face.pause(to_disk=to_disk))

    def resume(self) -> None:
        """Lets a paused sandbox go on. Nothing happens when it runs already. Raises what a start raises where it comes from the disk."""
        self._loop.run(self._face.resume())

    def resize(
        self,
        *,
        cpu: float | None = None,
        memory: int | str | None = None,
        pids: int | None = None,
        disk_read: int | str | None = None,
        disk_write: int | str | None = None,
        disk_iops: int | None = None,
    ) -> None:
        """Changes limits while it runs: `cpu` in cores, `memory` in bytes or as "2GB", rates in bytes a second or as "50MB/s".

        What is None stays. Raises `CapabilityError`.
        """
        self._loop.run(
            self._face.resize(cpu=cpu, memory=memory, pids=pids, disk_read=disk_read, disk_write=disk_write, disk_iops=disk_iops)
        )

    def snapshot(self, name: str | None = None, *, memory: bool | None = None) -> Snapshot:
        """Keeps it as it is now, for `create(snapshot=…)` and `rollback`. It goes on running.

        With `memory` its processes are kept too, with False only its files; None is with memory where that is possible, and
        `Snapshot.memory` then tells. Raises `CapabilityError`, `StorageFull`.
        """
        return self._loop.run(self._face.snapshot(name, memory=memory))

    def rollback(self, snapshot: str | Snapshot, *, memory: bool | None = None) -> None:
        """Puts it back to a snapshot; its id stays. Its processes are those of the snapshot, none where that holds files only.

        `memory` False goes back to the files of any snapshot. Connections and command handles end; `commands.connect(pid)` finds what goes
        on. Raises `NotFound`, `CapabilityError`.
        """
        self._loop.run(self._face.rollback(snapshot, memory=memory))

    def fork(self, count: int = 1, *, memory: bool | None = None) -> Forked:
        """Starts `count` sandboxes that are what this one is now. For each that did not start, the list has the error.

        With `memory` (None: where that is possible) its processes go on in each of them, else they have its files only.
        Raises `CapabilityError`, `StorageFull`.
        """
        return cast("Forked", _lift(self._loop.run(self._face.fork(count, memory=memory)), self._loop))

    def metrics(self) -> Usage:
        """What it uses now: memory and storage in bytes, processor seconds, processes, pressure (0-100)."""
        return self._loop.run(self._face.metrics())

    def set_network(self, network: EgressPolicy | Mapping[str, Any]) -> None:
        """Changes what it may reach while it runs, as in `create`: `{"allow_internet_access": False, "allow": ["example.org"]}`.

        What is left out is as by default. Connections that are denied now end. A sandbox without a network is given one, where its backend
        can do that while it runs. Raises `ConfigError`, `InvalidState` where it cannot be.
        """
        self._loop.run(self._face.set_network(network))

    def network_log(self) -> Sequence[Denial]:
        """What it was refused: the last 500 times, the oldest first. Raises `InvalidState` without a network."""
        return self._loop.run(self._face.network_log())

    def set_timeout(self, timeout: float | None) -> None:
        """It ends `timeout` seconds from now, whatever was granted before; None is without end."""
        self._loop.run(self._face.set_timeout(timeout))

    def is_running(self) -> bool:
        """Whether it is neither dead nor paused."""
        return self._loop.run(self._face.is_running())

    def get_info(self) -> SandboxInfo:
        """What its owner's journal tells of it. Raises `SandboxDied` or `InvalidState` once it is gone."""
        return self._loop.run(self._face.get_info())

    def kill(self) -> bool:
        """Ends it and frees all that it held; False when it had ended already. Works in every state."""
        return self._loop.run(self._face.kill())

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._face.__aexit__(*_))


Forked = list["Sandbox | AgentEnvError"]
"""What a fork gives: for each child its handle, or why it did not start."""


_FACES: dict[type, Callable[[Any, LoopThread], Any]] = {
    AsyncCommandHandle: CommandHandle,
    AsyncOutput: Output,
    AsyncCommands: Commands,
    AsyncFiles: Files,
    AsyncWatchHandle: WatchHandle,
    AsyncPty: Pty,
    AsyncShell: Shell,
    AsyncSandbox: Sandbox,
}


def _lift(value: Any, loop: LoopThread) -> Any:
    """What the asynchronous face gave back, with its handles and iterators turned into synchronous ones."""
    face = _FACES.get(type(value))
    if face is not None:
        return face(value, loop)
    if isinstance(value, list):
        return [_lift(item, loop) for item in value]
    if isinstance(value, AsyncIterator):
        return loop.iterate(value)
    return value
