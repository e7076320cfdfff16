"""Work in threads and tasks, when who waits for it is cancelled; and files that arrive."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from agentenv.isolation.vm.arrival import arrival
from agentenv.isolation.vm.finishing import finished, to_the_end


async def test_what_it_returns_and_raises() -> None:
    assert await finished(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await finished(lambda: 1 // 0)


async def test_cancelled_it_is_waited_for() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()
        done.set()

    waiting = asyncio.ensure_future(finished(work))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    await asyncio.sleep(0)
    waiting.cancel()
    assert not waiting.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done.is_set()


async def test_cancelled_it_can_be_told_to_stop() -> None:
    stop = threading.Event()
    waiting = asyncio.ensure_future(finished(lambda: stop.wait() and 1 // 0, stop.set))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await waiting
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_cancellation_does_not_reach_the_work() -> None:
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ended: list[str] = []

    async def work() -> None:
        await gate
        ended.append("whole")

    waiting = asyncio.ensure_future(to_the_end(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    gate.set_result(None)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["whole"]


async def test_a_file_that_is_there_or_comes(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    await arrival(tmp_path / "there")
    coming = asyncio.ensure_future(arrival(tmp_path / "later"))
    await asyncio.sleep(0)
    (tmp_path / "another").touch()
    (tmp_path / "new").touch()
    await asyncio.sleep(0)
    assert not coming.done()
    (tmp_path / "new").rename(tmp_path / "later")
    await coming


async def test_a_file_in_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await arrival(tmp_path / "nowhere" / "file")
