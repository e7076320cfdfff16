"""A stand-in for a sandbox: the guest side as plain processes under a directory, so that envs can be tested without any isolation.

Paths of the sandbox (`/run/agentenv`, `/opt/agentenv`, …) are moved below the directory, wherever they stand in a command. Snapshots and
forks copy what the real ones carry: the files.
"""

from __future__ import annotations

import itertools
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentenv.errors import NotFound, SandboxDied
from agentenv.isolation.contract import Capabilities

MOVED = ("/run/agentenv", "/opt/agentenv", "/var/lib/agentenv", "/workspace")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Result:
    exit_code: int
    signal: int | None


class LocalCommand:
    """A process in the background, as `sandbox.commands.run(…, background=True)` returns it."""

    def __init__(self, process: subprocess.Popen[str], sandbox: LocalSandbox) -> None:
        self.process = process
        self._sandbox = sandbox

    def wait(self, *, on_stdout: Callable[[str], None], on_stderr: Callable[[str], None]) -> Result:
        pumps = [
            threading.Thread(target=self._pump, args=(pipe, tell), daemon=True)
            for pipe, tell in ((self.process.stdout, on_stdout), (self.process.stderr, on_stderr))
        ]
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        code = self.process.wait()
        if self._sandbox.dead:
            raise SandboxDied(self._sandbox.id, "the sandbox was killed")
        return Result(code if code >= 0 else 128 - code, -code if code < 0 else None)

    def _pump(self, pipe, tell) -> None:
        for line in pipe:
            tell(line)
        pipe.close()


class LocalCommands:
    def __init__(self, sandbox: LocalSandbox) -> None:
        self._sandbox = sandbox

    def list(self) -> list[Any]:
        return []

    def connect(self, pid: int) -> LocalCommand:
        raise NotFound(f"there is no process {pid}.")

    def run(self, cmd: Sequence[str], *, background: Literal[True], tag: str) -> LocalCommand:
        words = [self._sandbox.inside(word) for word in cmd]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, cwd="/")
        self._sandbox.processes.append(process)
        return LocalCommand(process, self._sandbox)


class LocalFiles:
    def __init__(self, sandbox: LocalSandbox) -> None:
        self._sandbox = sandbox

    def write(self, path: str, data: bytes) -> None:
        target = Path(self._sandbox.inside(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    def exists(self, path: str) -> bool:
        """Only what was brought in is there: the host's own files are not, so that everything has to be delivered."""
        return self._sandbox.inside(path) != path and Path(self._sandbox.inside(path)).exists()


@dataclass(frozen=True)
class Kept:
    id: str


class LocalSandbox:
    """One directory and the processes that were started in it."""

    def __init__(self, directory: Path, source: Path | None = None) -> None:
        self.id = f"local-{next(_numbers)}"
        self._base = directory
        self.root = directory / self.id
        if source is None:
            self.root.mkdir(parents=True)
        else:
            shutil.copytree(source, self.root, ignore=lambda folder, names: ["run"] if Path(folder) == source else [])
        self.processes: list[subprocess.Popen[str]] = []
        self.dead = False
        self.capabilities = Capabilities()
        self.commands = LocalCommands(self)
        self.files = LocalFiles(self)

    def inside(self, text: str) -> str:
        for path in MOVED:
            text = text.replace(path, f"{self.root}{path}")
        return text

    def dial(self, target: int | str) -> socket.socket:
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.connect(self.inside(str(target)))
        return stream

    def upload_dir(self, source: str, destination: str) -> None:
        shutil.copytree(source, self.inside(destination), dirs_exist_ok=True)

    def kill(self) -> None:
        self.dead = True
        for process in self.processes:
            process.kill()
            process.wait()

    def snapshot(self, name: str | None = None) -> Kept:
        kept = f"snapshot-{next(_numbers)}"
        shutil.copytree(self.root, self._base / kept, ignore=lambda folder, names: ["run"] if Path(folder) == self.root else [])
        return Kept(kept)

    def rollback(self, snapshot: str) -> None:
        if self.dead:
            raise SandboxDied(self.id, "the sandbox was killed")
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.root)
        shutil.copytree(self._base / snapshot, self.root)

    def fork(self, count: int) -> list[LocalSandbox]:
        return [LocalSandbox(self._base, self.root) for _ in range(count)]
