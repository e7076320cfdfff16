"""What a check of the conformance suite is, and how it says what it found."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentenv.errors import AgentEnvError

Subject = TypeVar("Subject")


class CheckFailed(AgentEnvError):
    """The backend did not do what the check asks for."""


class NotApplicable(AgentEnvError):
    """The check cannot be tried here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Check(Generic[Subject]):
    """One thing that a backend has to do.

    `run` returns when the backend does it, and raises `CheckFailed` (or whatever else went wrong) when it does not. `needs` names the
    `Capabilities` without which it is skipped, `unless` those with which it is: a check of what happens without them. `seconds` is how
    long it may take.
    """

    name: str
    about: str
    run: Callable[[Subject], Awaitable[None]]
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    seconds: float = 120.0


def check(
    name: str, *, needs: tuple[str, ...] = (), unless: tuple[str, ...] = (), seconds: float = 120.0
) -> Callable[[Callable[[Subject], Awaitable[None]]], Check[Subject]]:
    """Makes a check of the function below it, whose docstring says in one line what the backend has to do."""

    def make(function: Callable[[Subject], Awaitable[None]]) -> Check[Subject]:
        return Check(name, inspect.getdoc(function) or "", function, needs, unless, seconds)

    return make


def expect(condition: object, message: str) -> None:
    """Raises `CheckFailed` with the message unless the condition holds."""
    if not condition:
        raise CheckFailed(message)


def expect_equal(what: str, found: object, wanted: object) -> None:
    """Raises `CheckFailed` with both unless they are equal."""
    if found != wanted:
        raise CheckFailed(f"{what} is {_short(found)}, and should be {_short(wanted)}.")


@contextmanager
def expect_refusal(what: str, *kinds: type[Exception]) -> Iterator[list[Exception]]:
    """The body has to raise one of `kinds`, which the list then holds: `what` has to be refused."""
    caught: list[Exception] = []
    try:
        yield caught
    except kinds as error:
        caught.append(error)
    if not caught:
        raise CheckFailed(f"{what} was not refused: there should have been {' or '.join(kind.__name__ for kind in kinds)}.")


def _short(value: object, most: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
