"""Every error that AgentENV raises on purpose, each with what a reader needs to act on it.

An infrastructure fault (a sandbox that died, a start that took too long, a full disk) is an `InfrastructureError`: training code
treats it as "this episode did not happen", never as a reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class AgentEnvError(Exception):
    """Base of all errors raised by AgentENV.

    `remedy` is one sentence that says what the reader can do; it is part of the printed message.
    """

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message


class ConfigError(AgentEnvError):
    """A configuration that cannot be used: where it is wrong (file, line, key) and what would be right."""

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        key: str | None = None,
        remedy: str | None = None,
    ) -> None:
        where = ":".join(str(part) for part in (file, line) if part is not None)
        prefix = ": ".join(part for part in (where, key) if part)
        super().__init__(f"{prefix}: {message}" if prefix else message, remedy=remedy)
        self.file = file
        self.line = line
        self.key = key


class CapabilityError(AgentEnvError):
    """The backend, image or environment cannot do what was asked, and never will as it is configured."""


class NotFound(AgentEnvError):
    """A sandbox, snapshot, image, run or environment with that name does not exist; near matches are in the message."""


class InvalidState(AgentEnvError):
    """The operation does not fit the state that the sandbox is in (a command in a paused sandbox, say)."""


class IdempotencyMismatch(InvalidState):
    """An Idempotency-Key that came with another request before."""


class SandboxPaused(InvalidState):
    """The sandbox is paused, and what was asked may not resume it."""


class Unsupported(CapabilityError):
    """A call that this server knows and does not offer, with the reason."""


class Unauthenticated(AgentEnvError):
    """A request with no key, a wrong one, or several that contradict each other."""


class Forbidden(AgentEnvError):
    """A request with a valid key whose role does not allow it."""


class InfrastructureError(AgentEnvError):
    """The machinery failed, not the agent: never a reward, never tool output."""


class BackendUnavailable(InfrastructureError):
    """No backend of the asked kind can run on this machine; says why for each and how to mend it."""


class QuotaExceeded(InfrastructureError):
    """A tenant's quota or the server's capacity is used up for now; it is worth trying again after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: int = 1, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class ProtocolError(InfrastructureError):
    """The other side of a stream sent what the protocol does not allow."""


class SandboxDied(InfrastructureError):
    """The sandbox is gone though nobody here ended it; `evidence` says what is known (exit status, kernel's record, last output)."""

    def __init__(self, sandbox_id: str, reason: str, *, evidence: Mapping[str, object] | None = None) -> None:
        super().__init__(f"sandbox {sandbox_id} died: {reason}.")
        self.sandbox_id = sandbox_id
        self.reason = reason
        self.evidence: Mapping[str, object] = evidence or {}


@dataclass(frozen=True, slots=True)
class Stage:
    """One finished or broken-off stage of a start, with its duration in seconds."""

    name: str
    seconds: float


class StartupTimeout(InfrastructureError):
    """A sandbox did not come up in time.

    Names the stage that was running, how long each stage took, the last output of the machine and the parameter that allows more time.
    """

    def __init__(
        self,
        *,
        kind: str,
        stage: str,
        timeout: float,
        timings: tuple[Stage, ...] = (),
        last_output: str = "",
        parameter: str = "timeouts.startup",
    ) -> None:
        spent = ", ".join(f"{done.name} {done.seconds * 1000:.1f} ms" for done in timings) or "none finished"
        super().__init__(
            f"{kind} startup timeout after {timeout:g} s in stage '{stage}' (stages so far: {spent}). {_printed(last_output)}",
            remedy=f"Raise `{parameter}` if the machine is merely slow; run `agentenv doctor` to see what is wrong with it.",
        )
        self.kind = kind
        self.stage = stage
        self.timeout = timeout
        self.timings = timings
        self.last_output = last_output
        self.parameter = parameter


class LimitReached(InfrastructureError):
    """A configured limit was hit; the subclasses say which, by whom, and what to raise."""


class OutOfMemory(LimitReached):
    """The kernel ended a process because the sandbox reached its memory limit (`limit`, `peak` in bytes)."""

    def __init__(self, sandbox_id: str, *, limit: int, peak: int, process: str | None) -> None:
        who = f"the kernel ended {process}" if process else "the kernel ended a process"
        super().__init__(
            f"sandbox {sandbox_id} is out of memory: {who} at its limit of {limit >> 20} MiB (peak {peak >> 20} MiB).",
            remedy="Raise `resources.memory`, or let the program use less.",
        )
        self.sandbox_id = sandbox_id
        self.limit = limit
        self.peak = peak
        self.process = process


class ProcessLimit(LimitReached):
    """The sandbox reached `resources.pids`, so a fork was refused."""

    def __init__(self, sandbox_id: str, *, limit: int) -> None:
        super().__init__(
            f"sandbox {sandbox_id} reached its limit of {limit} processes and threads; a fork was refused.",
            remedy="Raise `resources.pids`, or start fewer processes.",
        )
        self.sandbox_id = sandbox_id
        self.limit = limit


class StorageFull(LimitReached):
    """The sandbox's writable files reached `resources.storage`, or the machine's disk is full (`limit`, `used` in bytes).

    `process` is the one that was ended because of it, where one was: the sandbox then lives on, so that files can be removed.
    """

    def __init__(
        self, sandbox_id: str, *, limit: int, used: int, detail: str = "", process: str | None = None, disk: str | None = None
    ) -> None:
        """`disk` says which disk is full, where it is that and not the sandbox's own limit."""
        own = f"sandbox {sandbox_id} is out of storage: {used / 2**20:.4g} MiB used of {limit / 2**20:.4g} MiB."
        shared = (
            f"there is no room left for sandbox {sandbox_id} on the disk of {disk}: {(limit - used) / 2**20:.4g} of {limit / 2**20:.4g} MiB"
            " are free, what was left unfinished not counted."
        )
        ended = f"{process} was ended, which was writing." if process else ""
        super().__init__(
            " ".join(part for part in (shared if disk else own, ended, detail) if part),
            remedy="Make room there (`agentenv snapshot rm`, `agentenv image prune`), or move AGENTENV_HOME to a larger disk."
            if disk
            else "Raise `resources.storage`, or remove files in the sandbox.",
        )
        self.sandbox_id = sandbox_id
        self.limit = limit
        self.used = used
        self.process = process


class CommandError(AgentEnvError):
    """A command ended with a non-zero status and the caller had asked for `check=True`."""

    def __init__(self, command: str, *, exit_code: int, stdout: str, stderr: str) -> None:
        tail = stderr.strip() or stdout.strip()
        super().__init__(f"command {command!r} ended with status {exit_code}{': ' + tail[-400:] if tail else ''}")
        self.command = command
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class CommandTimeout(AgentEnvError):
    """A command was ended because it ran too long (`kind` is "wall") or was silent too long ("idle"); what it printed is kept.

    `restarted`: it ran in a persistent shell that had to be ended with it, so that the next command starts in a fresh one.
    """

    def __init__(self, command: str, *, kind: str, seconds: float, stdout: str, stderr: str, restarted: bool = False) -> None:
        why = "ran longer than" if kind == "wall" else "printed nothing for"
        lost = " The shell had to be restarted: its directory and variables are lost." if restarted else ""
        super().__init__(
            f"command {command!r} {why} {seconds:g} s and was ended; what it had printed is in `.stdout` and `.stderr`.{lost}",
            remedy=f"Raise `{'timeout' if kind == 'wall' else 'idle_timeout'}` to let it go on longer.",
        )
        self.command = command
        self.kind = kind
        self.seconds = seconds
        self.stdout = stdout
        self.stderr = stderr
        self.restarted = restarted


class BuildFailed(AgentEnvError):
    """A step of a template's build failed: which one (`step`, as it is written, `line` in `file`), and what it had printed (`output`)."""

    def __init__(
        self, reason: str, *, step: str, file: str | None = None, line: int = 0, output: str = "", remedy: str | None = None
    ) -> None:
        where = f"{file}:{line}: " if file and line else ""
        tail = output.strip()[-2000:]
        super().__init__(f"{where}{step.splitlines()[0] if step else 'the build'}: {reason}{f': {tail}' if tail else ''}", remedy=remedy)
        self.step = step
        self.file = file
        self.line = line
        self.reason = reason
        self.output = output


class SandboxFileError(AgentEnvError):
    """A file operation in a sandbox failed; `code` is the errno's name, `path` the path in the sandbox."""

    def __init__(self, code: str, path: str, message: str) -> None:
        super().__init__(f"{path}: {message} ({code})")
        self.code = code
        self.path = path


class EnvironmentFault(AgentEnvError):
    """An environment's own code raised: not the machinery's fault, so it is not retried. `traceback` is the environment's, as text."""

    def __init__(self, environment: str, *, kind: str, message: str, traceback: str = "") -> None:
        where = f"\n{traceback.rstrip()}" if traceback else ""
        super().__init__(f"environment {environment!r} raised {kind}: {message}{where}")
        self.environment = environment
        self.kind = kind
        self.traceback = traceback


class EnvironmentTimeout(InfrastructureError):
    """An environment did not answer a request (`operation`: "reset", "step", …) within `seconds`; `output` is the last that it printed."""

    def __init__(self, environment: str, *, operation: str, seconds: float, parameter: str, output: str = "") -> None:
        super().__init__(
            f"environment {environment!r} did not answer {operation} within {seconds:g} s. {_printed(output)}",
            remedy=f"Raise `{parameter}` if it is merely slow.",
        )
        self.environment = environment
        self.operation = operation
        self.seconds = seconds
        self.output = output


def _printed(output: str) -> str:
    tail = output.strip()[-400:]
    return f"Its last output was: {tail!r}." if tail else "It printed nothing."
