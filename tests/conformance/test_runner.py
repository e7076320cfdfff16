"""The runner: whatever a check does, there is one outcome of it, and the next check is run."""

from __future__ import annotations

import asyncio

import pytest

from agentenv.errors import ConfigError, SandboxDied
from agentenv.isolation.conformance import (
    CheckFailed,
    NotApplicable,
    Verdict,
    check,
    expect,
    expect_equal,
    expect_refusal,
    run_check,
    select,
)
from agentenv.isolation.contract import Capabilities


class Subject:
    """Claims a pause and counts how often it was tidied up."""

    capabilities = Capabilities(pause=True)

    def __init__(self) -> None:
        self.tidied = 0
        self.untidy: Exception | None = None

    async def tidy(self) -> None:
        self.tidied += 1
        if self.untidy:
            raise self.untidy


@check("group.passes")
async def passes(subject: Subject) -> None:
    """It passes."""


@check("group.fails")
async def fails(subject: Subject) -> None:
    """It fails."""
    expect_equal("the sum", 2 + 2, 5)


@check("group.breaks")
async def breaks(subject: Subject) -> None:
    """It breaks."""
    raise SandboxDied("sb1", "it fell over")


@check("group.hangs", seconds=0.05)
async def hangs(subject: Subject) -> None:
    """It hangs."""
    await asyncio.Event().wait()


@check("other.does-not-apply")
async def does_not_apply(subject: Subject) -> None:
    """It does not apply."""
    raise NotApplicable("there is no such thing here.")


@check("other.needs", needs=("pause", "network"))
async def needs(subject: Subject) -> None:
    """It needs something."""
    raise AssertionError("never run")


@check("other.unless", unless=("pause",))
async def unless(subject: Subject) -> None:
    """It is for those who lack something."""
    raise AssertionError("never run")


@pytest.mark.parametrize(
    ("one", "verdict", "message", "tidied"),
    [
        (passes, Verdict.PASSED, "", 1),
        (fails, Verdict.FAILED, "the sum is 4, and should be 5.", 1),
        (breaks, Verdict.FAILED, "SandboxDied: sandbox sb1 died: it fell over.", 1),
        (hangs, Verdict.FAILED, "it was not done after 0.05 s.", 1),
        (does_not_apply, Verdict.SKIPPED, "there is no such thing here.", 1),
        (needs, Verdict.SKIPPED, "the backend does not claim network.", 0),
        (unless, Verdict.SKIPPED, "the backend claims pause.", 0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
async def test_each_end_of_a_check_is_an_outcome(one: object, verdict: Verdict, message: str, tidied: int) -> None:
    subject = Subject()
    outcome = await run_check(one, subject)  # type: ignore[type-var, arg-type]
    assert (outcome.verdict, outcome.message) == (verdict, message)
    assert subject.tidied == tidied
    assert bool(outcome.traceback) == (one is breaks)


async def test_what_cannot_be_tidied_up_is_a_failure_of_the_check() -> None:
    subject = Subject()
    subject.untidy = OSError("it does not let go")
    outcome = await run_check(passes, subject)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.message == "when all was ended after it: OSError: it does not let go"


def test_checks_are_chosen_by_name_and_by_group() -> None:
    checks = [passes, fails, does_not_apply]
    assert select(checks, []) == checks
    assert select(checks, ["group"]) == [passes, fails]
    assert select(checks, ["other.does-not-apply", "group.fails"]) == [fails, does_not_apply]
    with pytest.raises(ConfigError, match="there is no check 'grou'; the groups are group, other"):
        select(checks, ["grou"])


def test_expectations() -> None:
    expect(True, "never told")
    with pytest.raises(CheckFailed, match="told"):
        expect([], "told")
    with expect_refusal("a missing key", KeyError) as caught:
        {}["key"]
    assert isinstance(caught[0], KeyError)
    with (
        pytest.raises(CheckFailed, match="a wish was not refused: there should have been KeyError or OSError"),
        expect_refusal("a wish", KeyError, OSError),
    ):
        pass
    with pytest.raises(ZeroDivisionError), expect_refusal("a wish", KeyError):
        1 / 0  # noqa: B018
