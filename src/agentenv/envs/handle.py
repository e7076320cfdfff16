"""What an environment needs of a sandbox, and how it asks for one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from agentenv.egress.policy import EgressPolicy
from agentenv.isolation.contract import Capabilities, Resources


class RunningCommand(Protocol):
    """A command that was started in the background."""

    def wait(self, *, on_stdout: Callable[[str], None], on_stderr: Callable[[str], None]) -> Any:
        """Its result (with `exit_code` and `signal`) when it has ended; the callbacks get what it prints, from its beginning.

        Raises an `AgentEnvError` when the sandbox ended first, or a limit of it was reached.
        """
        ...


class Listed(Protocol):
    """A command that runs in the background: its number in the sandbox, and what it was called."""

    @property
    def pid(self) -> int: ...

    @property
    def tag(self) -> str | None: ...


class Commands(Protocol):
    """Starts programs in the sandbox, and finds again those that went on from memory."""

    def run(self, cmd: Sequence[str], *, background: Literal[True], tag: str) -> RunningCommand: ...

    def list(self) -> Sequence[Listed]: ...

    def connect(self, pid: int) -> RunningCommand: ...


class Files(Protocol):
    """Writes and looks for files of the sandbox."""

    def write(self, path: str, data: bytes) -> Any: ...

    def exists(self, path: str) -> bool: ...


class SandboxHandle(Protocol):
    """The part of `agentenv.Sandbox` that environments use; tests stand in a plain process for it."""

    @property
    def id(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def commands(self) -> Commands: ...

    @property
    def files(self) -> Files: ...

    def dial(self, target: int | str) -> socket.socket: ...

    def upload_dir(self, source: str, destination: str) -> Any: ...

    def kill(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class EnvTimeouts:
    """Seconds that each stage of an environment's life may take."""

    startup: float = 60.0
    """From a sandbox's turn to start to its agent's first answer, and again from that to the environment's hello."""
    shutdown: float = 5.0
    reset: float = 60.0
    step: float = 60.0
    """Also for every other request to the environment."""


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """What each of an environment's sandboxes is like."""

    image: str | None = None
    isolation: str = "auto"
    server: str | None = None
    resources: Resources = field(default_factory=Resources)
    network: bool = False
    ports: tuple[int, ...] = ()
    egress: EgressPolicy = field(default_factory=EgressPolicy)
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


SandboxFactory = Callable[[], SandboxHandle]
