"""The ends of sandboxes' times."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.fleet.test_ledger import resident

from agentenv.server.fleet.deadlines import Deadlines
from agentenv.server.fleet.resident import Resident


async def ended(deadlines: Deadlines, one: Resident, due: asyncio.Queue[Resident]) -> float:
    """When it was found overdue, on the monotonic clock."""
    assert await due.get() is one
    assert deadlines.overdue(one)
    return time.monotonic()


async def test_it_ends_no_sooner_than_granted_however_often_that_is_changed() -> None:
    due: asyncio.Queue[Resident] = asyncio.Queue()
    deadlines, one = Deadlines(due.put_nowait), resident()
    began = time.monotonic()
    deadlines.grant(one, 100.0)
    deadlines.grant(one, 0.01)
    deadlines.grant(one, 0.05, only_more=True)
    deadlines.grant(one, 0.02, only_more=True)
    assert await ended(deadlines, one, due) - began >= 0.05


async def test_an_extension_at_the_last_moment_counts() -> None:
    due: asyncio.Queue[Resident] = asyncio.Queue()
    deadlines, one = Deadlines(due.put_nowait), resident()
    deadlines.grant(one, 0.0)
    assert await due.get() is one
    # Whoever is to end it looks again, and finds that it has time.
    deadlines.grant(one, 50.0)
    assert not deadlines.overdue(one)
    deadlines.stop(one)
    assert one.timer is None
    assert not deadlines.overdue(one)


async def test_without_an_end_it_has_none() -> None:
    deadlines, one = Deadlines(lambda _: pytest.fail("it ended")), resident()
    deadlines.grant(one, 0.0)
    deadlines.grant(one, None)
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    assert one.view().end is None


Grants = st.lists(st.tuples(st.floats(0.0, 1000.0), st.booleans()), min_size=1, max_size=20)


@settings(deadline=None)
@given(Grants)
def test_only_more_never_shortens(grants: list[tuple[float, bool]]) -> None:
    async def play() -> None:
        deadlines, one = Deadlines(lambda _: None), resident()
        for seconds, only_more in grants:
            before, now = one.deadline, time.monotonic()
            deadlines.grant(one, seconds, only_more=only_more)
            assert one.deadline is not None
            if only_more and before is not None:
                assert one.deadline >= before
            assert one.deadline >= now + seconds or only_more
            assert one.timer is not None
        deadlines.stop(one)

    asyncio.run(play())
