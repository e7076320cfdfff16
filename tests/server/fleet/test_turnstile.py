"""The queue before a start."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.errors import QuotaExceeded
from agentenv.server.fleet.turnstile import Turnstile


class Crowd:
    """Tasks that go through a turnstile and leave it when they are told."""

    def __init__(self, turnstile: Turnstile) -> None:
        self.turnstile = turnstile
        self.entered: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, tenant: str, priority: int = 0) -> None:
        self._leave[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._go(name, tenant, priority))
        await settle()

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self._tasks[name]
        await settle()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.gather(self._tasks[name], return_exceptions=True)
        await settle()

    async def _go(self, name: str, tenant: str, priority: int) -> None:
        async with self.turnstile.turn(tenant, priority):
            self.entered.append(name)
            await self._leave[name].wait()


async def settle() -> None:
    """Lets everything that can run do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_tenant_with_many_does_not_keep_out_another() -> None:
    crowd = Crowd(Turnstile(1, 100, 60))
    for name in ("a1", "a2", "a3"):
        await crowd.come(name, "a")
    await crowd.come("b1", "b")
    await crowd.leave("a1")
    await crowd.leave("b1")
    await crowd.leave("a2")
    await crowd.leave("a3")
    assert crowd.entered == ["a1", "b1", "a2", "a3"]


async def test_priority_counts_within_a_tenant_only() -> None:
    crowd = Crowd(Turnstile(1, 100, 60))
    await crowd.come("first", "a")
    await crowd.come("low", "a", -1)
    await crowd.come("high", "a", 5)
    await crowd.come("other", "b", -9)
    await crowd.leave("first")
    assert crowd.entered[-1] == "other"
    await crowd.leave("other")
    assert crowd.entered[-1] == "high"
    await crowd.leave("high")
    assert crowd.entered[-1] == "low"
    await crowd.leave("low")


async def test_beyond_the_depth_it_refuses_and_says_when_to_come_again() -> None:
    crowd = Crowd(Turnstile(1, 1, 60))
    await crowd.come("inside", "a")
    await crowd.come("waiting", "a")
    with pytest.raises(QuotaExceeded) as caught:
        async with crowd.turnstile.turn("b"):
            pass
    assert caught.value.retry_after >= 1
    await crowd.leave("inside")
    await crowd.leave("waiting")


async def test_who_waits_too_long_is_refused() -> None:
    crowd = Crowd(Turnstile(1, 5, 0.01))
    await crowd.come("inside", "a")
    with pytest.raises(QuotaExceeded, match="no turn came"):
        async with crowd.turnstile.turn("b"):
            pass
    await crowd.leave("inside")
    assert crowd.turnstile.waiting == crowd.turnstile.inside == 0


Steps = st.lists(st.tuples(st.sampled_from(["come", "leave", "give up"]), st.integers(0, 3), st.integers(-2, 2)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(width=st.integers(1, 3), steps=Steps)
def test_never_more_inside_than_fit_and_nobody_is_forgotten(width: int, steps: list[tuple[str, int, int]]) -> None:
    async def play() -> None:
        crowd = Crowd(Turnstile(width, 1000, 60))
        there: list[str] = []
        gone = Counter[str]()
        for number, (step, choice, priority) in enumerate(steps):
            if step == "come":
                name = f"{number}"
                there.append(name)
                await crowd.come(name, f"tenant{choice}", priority)
            elif there:
                inside = [name for name in there if name in crowd.entered]
                candidates = inside if step == "leave" else [name for name in there if name not in crowd.entered]
                if candidates:
                    name = candidates[choice % len(candidates)]
                    there.remove(name)
                    await (crowd.leave(name) if step == "leave" else crowd.give_up(name))
                    gone[step] += 1
            inside_now = [name for name in there if name in crowd.entered]
            assert len(inside_now) == crowd.turnstile.inside == min(width, len(there))
            assert crowd.turnstile.waiting == len(there) - len(inside_now)
        while there:
            name = next(one for one in there if one in crowd.entered)
            there.remove(name)
            await crowd.leave(name)
        assert crowd.turnstile.inside == crowd.turnstile.waiting == 0

    asyncio.run(play())
