"""One environment in one sandbox, from its start to its end: what `SandboxEnv` has one of and `SandboxVectorEnv` many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from agentenv.envs.guest import values
from agentenv.envs.guest.wire import Kind
from agentenv.envs.handle import EnvTimeouts, SandboxFactory, SandboxHandle
from agentenv.envs.process import SOCKET, EnvironmentProcess, EnvironmentSpec
from agentenv.envs.stream import Hello, StepStream
from agentenv.errors import AgentEnvError, CapabilityError, EnvironmentTimeout, InfrastructureError


class Lane:
    """A sandbox, the environment's process in it, and the stream to that. Made by `open` or `adopt`.

    Once a request has failed for another reason than the environment's own code, the lane is `broken`: every later request raises the same.
    """

    def __init__(self, sandbox: SandboxHandle, process: EnvironmentProcess, stream: StepStream, timeouts: EnvTimeouts) -> None:
        self.sandbox = sandbox
        self.process = process
        self.stream = stream
        self.socket = stream.socket
        self.timeouts = timeouts
        self.broken: AgentEnvError | None = None
        stream.limit(timeouts.step)

    @classmethod
    def open(cls, factory: SandboxFactory, spec: EnvironmentSpec, timeouts: EnvTimeouts) -> Lane:
        """A new sandbox with the environment in it. Whatever fails, no sandbox is left behind."""
        return cls.adopt(factory(), spec, timeouts)

    @classmethod
    def adopt(cls, sandbox: SandboxHandle, spec: EnvironmentSpec, timeouts: EnvTimeouts, *, resume: bool = False) -> Lane:
        """Starts the environment in a sandbox that exists, and takes that over.

        With `resume` it goes on with the episode that the sandbox carries: in the memory of its process, or saved in a file.
        """
        try:
            process = EnvironmentProcess.find(sandbox, spec) if resume and sandbox.capabilities.memory_snapshot else None
            process = process or EnvironmentProcess.start(sandbox, spec, timeout=timeouts.startup, resume=resume)
            return cls(sandbox, process, connect(process, timeouts.startup), timeouts)
        except BaseException:
            sandbox.kill()
            raise

    @property
    def hello(self) -> Hello:
        return self.stream.hello

    @contextmanager
    def doing(self, operation: str, seconds: float, parameter: str) -> Iterator[None]:
        """Turns a broken stream into the error that says why, and marks the lane."""
        if self.broken is not None:
            raise self.broken
        try:
            yield
        except OSError as problem:
            self.broken = self.explain(problem, operation, seconds, parameter)
            raise self.broken from problem
        except InfrastructureError as problem:
            self.broken = problem
            raise

    def explain(self, problem: BaseException, operation: str, seconds: float, parameter: str) -> AgentEnvError:
        """The typed error for a stream that broke: a time limit, or the death of the process or the sandbox, with the evidence."""
        if isinstance(problem, AgentEnvError):
            return problem
        if isinstance(problem, (TimeoutError, BlockingIOError)):
            name = self.process.spec.name
            return EnvironmentTimeout(name, operation=operation, seconds=seconds, parameter=parameter, output=self.process.output)
        return self.process.death(operation)

    def fail(self, problem: OSError | AgentEnvError, doing: str) -> AgentEnvError:
        """Marks the lane broken by what happened during a "step" or "reset"; returns the typed error."""
        if self.broken is None:
            seconds, parameter = (self.timeouts.reset, "timeouts.reset") if doing == "reset" else (self.timeouts.step, "timeouts.step")
            self.broken = self.explain(problem, doing, seconds, parameter)
        return self.broken

    def render(self) -> Any:
        with self.doing("render", self.timeouts.step, "timeouts.step"):
            return self.stream.ask_value(Kind.RENDER)

    def call(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The environment's attribute `name`, called with the arguments where it is a method."""
        with self.doing(f"call of {name}", self.timeouts.step, "timeouts.step"):
            return self.stream.ask_value(Kind.CALL, values.dumps({"name": name, "args": list(arguments), "kwargs": keywords}))

    def set(self, name: str, value: Any) -> None:
        with self.doing(f"set of {name}", self.timeouts.step, "timeouts.step"):
            self.stream.ask_value(Kind.SET, values.dumps({"name": name, "value": value}))

    def save(self) -> bytes:
        """The episode as bytes. Raises `CapabilityError` where the environment has no `save` and `load`."""
        self.require_save()
        with self.doing("save", self.timeouts.step, "timeouts.step"):
            return bytes(self.stream.ask(Kind.SAVE, expect=Kind.STATE))

    def load(self, state: bytes) -> None:
        """Goes on with an episode that `save` returned."""
        self.require_save()
        with self.doing("load", self.timeouts.reset, "timeouts.reset"):
            self.stream.ask(Kind.LOAD, state)

    def require_save(self) -> None:
        """Raises `CapabilityError` where the environment cannot be saved."""
        if not self.hello.can_save:
            raise CapabilityError(
                f"the environment {self.process.spec.name!r} cannot be saved in the middle of an episode: it has no save() and load(), "
                "and its sandbox's backend cannot snapshot memory.",
                remedy="Define save() -> bytes and load(bytes) in the environment, or use a backend with memory snapshots.",
            )

    def close(self, *, gracefully: bool = True) -> None:
        """Lets the environment close itself (for at most `timeouts.shutdown`), then ends the sandbox; idempotent."""
        if gracefully and self.broken is None:
            with suppress(AgentEnvError, OSError):
                self.stream.limit(self.timeouts.shutdown)
                self.stream.ask(Kind.CLOSE)
        self.stream.close()
        self.sandbox.kill()


def connect(process: EnvironmentProcess, timeout: float) -> StepStream:
    """A stream to a server that listens; its hello has arrived."""
    stream = process.sandbox.dial(SOCKET)
    try:
        return StepStream(stream, timeout=timeout)
    except OSError as problem:
        stream.close()
        if isinstance(problem, TimeoutError):
            raise EnvironmentTimeout(
                process.spec.name, operation="its hello", seconds=timeout, parameter="timeouts.startup", output=process.output
            ) from None
        raise process.death("its hello") from problem
    except BaseException:
        stream.close()
        raise
