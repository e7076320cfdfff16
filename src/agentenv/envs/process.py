"""Starts an environment's server in a sandbox and keeps what is known of it: that it is ready, what it printed, how it ended."""

from __future__ import annotations

import queue
import shlex
import sys
import threading
from asyncio import CancelledError
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agentenv.envs.delivery import Delivered, deliver
from agentenv.envs.guest import values
from agentenv.envs.handle import RunningCommand, SandboxHandle
from agentenv.errors import AgentEnvError, EnvironmentFault, EnvironmentTimeout, InvalidState, NotFound, SandboxDied

SOCKET: Final = "/run/agentenv/environment.sock"
STATE_FILE: Final = "/var/lib/agentenv/episode"
"""Where a saved episode lies in a sandbox, so that a file-system snapshot carries it."""

TAG: Final = "agentenv-environment"
"""What the server is called among the sandbox's commands, by which it is found again in a copy."""

_BOOT: Final = "import sys; sys.path[0] = sys.argv.pop(1); from agentenv.envs.guest.server import main; sys.exit(main())"
_OUTPUT_LIMIT: Final = 65_536


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """Which environment to build: the user's name for it, where it is, its keyword arguments, what `render` is to return."""

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    render_mode: str | None = None


class EnvironmentProcess:
    """One environment's server. Made by `start`, which returns when it listens, or by `find`."""

    def __init__(self, sandbox: SandboxHandle, spec: EnvironmentSpec) -> None:
        self.sandbox = sandbox
        self.spec = spec
        self.ended = threading.Event()
        self.outcome: Any = None
        self._output: deque[str] = deque()
        self._output_size = 0
        self._lock = threading.Lock()
        self._report = ""
        self._news: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    @classmethod
    def start(cls, sandbox: SandboxHandle, spec: EnvironmentSpec, *, timeout: float, resume: bool = False) -> EnvironmentProcess:
        """Delivers the code, starts the server and waits until it listens. With `resume` it goes on with the episode in `STATE_FILE`.

        Raises `NotFound` for a name that leads nowhere, `EnvironmentFault` when the environment's constructor raised, `EnvironmentTimeout`
        after `timeout` seconds, `SandboxDied` when the process or the sandbox ended.
        """
        process = cls(sandbox, spec)
        command = launch_command(deliver(sandbox, spec.target), spec, resume=resume)
        process._begin_watch(sandbox.commands.run(("/bin/sh", "-c", command), background=True, tag=TAG))
        process._await_ready(timeout)
        return process

    @classmethod
    def find(cls, sandbox: SandboxHandle, spec: EnvironmentSpec) -> EnvironmentProcess | None:
        """The server that went on in a sandbox made from memory; None when there is none."""
        for known in sandbox.commands.list():
            if known.tag == TAG:
                process = cls(sandbox, spec)
                process._begin_watch(sandbox.commands.connect(known.pid))
                return process
        return None

    @property
    def output(self) -> str:
        """The last that the environment printed, at most 65,536 characters."""
        with self._lock:
            return "".join(self._output)[-_OUTPUT_LIMIT:]

    def death(self, doing: str, *, patience: float = 2.0) -> AgentEnvError:
        """Why the stream to the environment broke while `doing`; waits `patience` seconds for the kernel's and the agent's word on it."""
        if not self.ended.wait(patience):
            return SandboxDied(
                self.sandbox.id, f"its environment {self.spec.name!r} hung up during {doing}", evidence={"stderr": self.output}
            )
        if isinstance(self.outcome, AgentEnvError):
            return self.outcome
        code = getattr(self.outcome, "exit_code", None)
        signal = getattr(self.outcome, "signal", None)
        how = f"was ended by signal {signal}" if signal else f"ended with status {code}"
        evidence = {"exit_code": code, "signal": signal, "stderr": self.output}
        tail = self.output.strip()[-400:]
        said = f"; it had printed {tail!r}" if tail else ""
        return SandboxDied(
            self.sandbox.id, f"the process of its environment {self.spec.name!r} {how} during {doing}{said}", evidence=evidence
        )

    def _begin_watch(self, running: RunningCommand) -> None:
        threading.Thread(target=self._watch, args=(running,), name=f"agentenv-watch-{self.sandbox.id}", daemon=True).start()

    def _watch(self, running: RunningCommand) -> None:
        try:
            self.outcome = running.wait(on_stdout=self._on_stdout, on_stderr=self._on_stderr)
        except AgentEnvError as problem:
            self.outcome = problem
        except CancelledError:
            self.outcome = InvalidState("this process is ending; its sandboxes are gone.")
        self.ended.set()
        self._news.put(None)

    def _on_stdout(self, text: str) -> None:
        self._report += text
        while "\n" in self._report:
            line, self._report = self._report.split("\n", 1)
            self._news.put(line)

    def _on_stderr(self, text: str) -> None:
        with self._lock:
            self._output.append(text)
            self._output_size += len(text)
            while len(self._output) > 1 and self._output_size - len(self._output[0]) >= _OUTPUT_LIMIT:
                self._output_size -= len(self._output.popleft())

    def _await_ready(self, timeout: float) -> None:
        try:
            news = self._news.get(timeout=timeout)
        except queue.Empty:
            raise EnvironmentTimeout(
                self.spec.name, operation="its start", seconds=timeout, parameter="timeouts.startup", output=self.output
            ) from None
        if news is None:
            raise self.death("its start")
        if news != "ready":
            raise self._refusal(news)

    def _refusal(self, line: str) -> AgentEnvError:
        """The error for a server that reported `failed {…}`, or anything else, in place of `ready`."""
        word, _, content = line.partition(" ")
        if word != "failed":
            return EnvironmentFault(self.spec.name, kind="UnexpectedOutput", message=f"its server said {line[:200]!r} in place of 'ready'")
        problem = values.loads(content.encode())
        if problem["type"] == "LoadError":
            return NotFound(f"the environment {self.spec.name!r} cannot be loaded: {problem['message']}")
        return EnvironmentFault(self.spec.name, kind=problem["type"], message=problem["message"], traceback=problem["traceback"])


def launch_command(delivered: Delivered, spec: EnvironmentSpec, *, resume: bool) -> str:
    """The shell command that starts the server with the sandbox's Python: the one this process runs on where the image has it."""
    arguments = [
        delivered.root,
        delivered.target,
        "--name",
        spec.name,
        "--socket",
        SOCKET,
        "--options",
        values.dumps(dict(spec.options)).decode(),
    ]
    if spec.render_mode is not None:
        arguments += ["--render-mode", spec.render_mode]
    if resume:
        arguments += ["--state", STATE_FILE]
    for path in delivered.paths:
        arguments += ["--path", path]
    failed = values.dumps({"type": "LoadError", "message": "the sandbox's image has no Python (python3 on PATH)", "traceback": ""}).decode()
    return (
        f"for python in {shlex.quote(sys.executable)} python3 python; do "
        f'command -v "$python" >/dev/null 2>&1 && exec "$python" -u -c {shlex.quote(_BOOT)} {shlex.join(arguments)}; '
        f"done; echo {shlex.quote('failed ' + failed)}; exit 127"
    )
