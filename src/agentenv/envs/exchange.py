"""One request to each of many lanes and all their answers: every request is sent before any answer is awaited."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from agentenv.envs.batch import AnswerRows
from agentenv.envs.lane import Lane
from agentenv.errors import AgentEnvError, EnvironmentFault

Answer: TypeAlias = tuple[int, dict[str, Any]] | AgentEnvError
"""A lane's (flags, info), or why it has none: `EnvironmentFault`, or what made the lane unusable."""

_AT_ONCE: Final = socket.MSG_DONTWAIT


def exchange(
    lanes: Sequence[Lane], frames: Sequence[bytes | memoryview], rows: AnswerRows, places: Sequence[int], doing: str = "step"
) -> list[Answer] | None:
    """Sends `frames[i]` to `lanes[i]` and receives its answer into row `places[i]`.

    Returns None when every answer is plain (no end of an episode, no info, no failure), which is most steps of most environments and costs
    nothing more to look at. The kernel's time limits run for all lanes at once: after one has expired the others are not waited for again.
    """
    usual, slots = rows.plain_size, rows.slots
    for lane, frame in zip(lanes, frames, strict=True):
        try:
            lane.socket.sendall(frame)
        except OSError as problem:
            lane.broken = lane.broken or lane.explain(problem, doing, *_limit(lane, doing))
    counts: list[int | OSError] = [0] * len(lanes)
    waiting, irregular = 0, len(lanes) != len(slots)
    # The last to be asked is the last to answer: while the host sleeps on it the others finish, and it is woken once, not once a lane.
    for index in range(len(lanes) - 1, -1, -1):
        try:
            counts[index] = count = lanes[index].socket.recv_into(slots[places[index]], 0, waiting)
        except OSError as problem:
            counts[index], count = problem, -1
            if isinstance(problem, BlockingIOError):
                waiting = _AT_ONCE
        if count != usual:
            irregular = True
    if not irregular and rows.all_plain():
        return None
    return [_conclude(lane, place, count, rows, doing) for lane, place, count in zip(lanes, places, counts, strict=True)]


def _conclude(lane: Lane, place: int, count: int | OSError, rows: AnswerRows, doing: str) -> Answer:
    """Checks one lane's answer and reads the rest of it, or says why there is none."""
    if lane.broken is not None:
        return lane.broken
    try:
        if isinstance(count, OSError):
            raise count
        return rows.finish(place, count, lane.socket, lane.hello.environment)
    except EnvironmentFault as fault:
        return fault
    except (OSError, AgentEnvError) as problem:
        lane.broken = lane.explain(problem, doing, *_limit(lane, doing))
        return lane.broken


def _limit(lane: Lane, doing: str) -> tuple[float, str]:
    return (lane.timeouts.reset, "timeouts.reset") if doing == "reset" else (lane.timeouts.step, "timeouts.step")
