"""Runs checks one after the other, and tells of each what came of it."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from time import perf_counter
from typing import Protocol, TypeVar

from agentenv.errors import AgentEnvError, ConfigError
from agentenv.isolation.conformance.check import Check, CheckFailed, NotApplicable
from agentenv.isolation.contract import Capabilities

_GIVING_UP = 60.0
"""Seconds that a check which took too long, and the tidying after it, get to end."""


class Verdict(StrEnum):
    """What came of a check."""

    PASSED = "pass"
    FAILED = "fail"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one check: `message` says why it failed or was skipped, `traceback` where an error came from that it did not expect."""

    check: str
    about: str
    verdict: Verdict
    seconds: float
    message: str = ""
    traceback: str = ""

    def as_dict(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)


class Tried(Protocol):
    """What the checks are run on."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def tidy(self) -> None:
        """Ends what the check that was just run has made."""
        ...


SubjectT = TypeVar("SubjectT", bound=Tried)


def select(checks: Sequence[Check[SubjectT]], only: Sequence[str]) -> list[Check[SubjectT]]:
    """The checks whose name, or group (what stands before the dot), is in `only`; all when that is empty. Raises `ConfigError`."""
    for wish in only:
        if not any(_is_named(one.name, wish) for one in checks):
            groups = sorted({one.name.partition(".")[0] for one in checks})
            raise ConfigError(f"there is no check {wish!r}; the groups are {', '.join(groups)}", key="--only")
    return [one for one in checks if not only or any(_is_named(one.name, wish) for wish in only)]


def _is_named(name: str, wish: str) -> bool:
    return name == wish or name.partition(".")[0] == wish


async def run_checks(
    checks: Sequence[Check[SubjectT]], subject: SubjectT, *, begin: Callable[[str], None] = lambda name: None, patience: float = 1.0
) -> AsyncIterator[Outcome]:
    """Runs each check in turn and gives its outcome. `begin` is called with each name before; `patience` stretches the time-outs."""
    for one in checks:
        begin(one.name)
        yield await run_check(one, subject, patience=patience)


async def run_check(one: Check[SubjectT], subject: SubjectT, *, patience: float = 1.0) -> Outcome:
    """Runs one check, and tidies up after it. No error of the check or of the backend comes out of this."""
    if reason := _why_not(one, subject.capabilities):
        return Outcome(one.name, one.about, Verdict.SKIPPED, 0.0, reason)
    since = perf_counter()
    error = await _error_of(one.run(subject), one.seconds * patience)
    untidy = await _error_of(subject.tidy(), _GIVING_UP * patience)
    seconds = perf_counter() - since
    if error is None and untidy is not None:
        return _failure(one, seconds, untidy, "when all was ended after it: ")
    if isinstance(error, NotApplicable):
        return Outcome(one.name, one.about, Verdict.SKIPPED, seconds, str(error))
    return Outcome(one.name, one.about, Verdict.PASSED, seconds) if error is None else _failure(one, seconds, error)


def _why_not(one: Check[SubjectT], has: Capabilities) -> str:
    missing = [name for name in one.needs if not getattr(has, name)]
    if missing:
        return f"the backend does not claim {', '.join(missing)}."
    present = [name for name in one.unless if getattr(has, name)]
    return f"the backend claims {', '.join(present)}." if present else ""


async def _error_of(work: Awaitable[None], seconds: float) -> BaseException | None:
    """What the work raised, None when it ended well. Whatever it raises is the finding, so nothing is let through but a cancellation."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_GIVING_UP)
            return CheckFailed(f"it was not done after {seconds:g} s.")
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=_GIVING_UP)
        raise
    return CheckFailed("it was cancelled.") if task.cancelled() else task.exception()


def _failure(one: Check[SubjectT], seconds: float, error: BaseException, prefix: str = "") -> Outcome:
    trace = "" if isinstance(error, CheckFailed) else "".join(traceback.format_exception(error))
    told = str(error) if isinstance(error, CheckFailed) else f"{type(error).__name__}: {error}"
    if isinstance(error, AgentEnvError) and error.remedy and error.remedy not in told:
        told += f" {error.remedy}"
    return Outcome(one.name, one.about, Verdict.FAILED, seconds, prefix + told, trace)
