"""One request to each of many lanes and all their answers: every request is sent before any answer is awaited."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from agentenv.envs.batch import AnswerRows
from agentenv.envs.lanes import Lanes
from agentenv.errors import AgentEnvError, EnvironmentFault

Answer: TypeAlias = tuple[int, dict[str, Any]] | AgentEnvError
"""A lane's (flags, info), or why it has none: `EnvironmentFault`, or what made the lane unusable."""

_AT_ONCE: Final = socket.MSG_DONTWAIT


def exchange(
    lanes: Lanes, places: Sequence[int], frames: Sequence[bytes | memoryview], rows: AnswerRows, doing: str = "step"
) -> list[Answer] | None:
    """Sends `frames[i]` to the lane at `places[i]` and receives its answer into the row of that place.

    Returns None when all lanes were asked and every answer is plain (no end of an episode, no info, no failure): most steps of most
    environments, which cost nothing more to look at. The kernel's time limits run for all lanes at once: when one has expired the others
    are not waited for again.
    """
    sends, receives, slots, usual = lanes.sends, lanes.receives, rows.slots, rows.plain_size
    plain, waiting = len(places) == len(slots), 0
    counts: list[int | OSError] = [0] * len(slots)
    for place, content in zip(places, frames, strict=True):
        try:
            sends[place](content)
        except OSError as problem:
            lanes.all[place].fail(problem, doing)
    # The last to be asked is the last to answer: while the host sleeps on it the others finish, and it is woken once, not once a lane.
    for place in reversed(places):
        try:
            count = receives[place](slots[place], 0, waiting)
            counts[place] = count
            if count != usual:
                plain = False
        except OSError as problem:
            counts[place], plain = problem, False
            if isinstance(problem, BlockingIOError):
                waiting = _AT_ONCE
    if plain and rows.all_plain():
        return None
    return [_conclude(lanes, place, counts[place], rows, doing) for place in places]


def _conclude(lanes: Lanes, place: int, count: int | OSError, rows: AnswerRows, doing: str) -> Answer:
    """Checks one lane's answer and reads the rest of it, or says why there is none."""
    lane = lanes.all[place]
    if lane.broken is not None:
        return lane.broken
    try:
        if isinstance(count, OSError):
            raise count
        return rows.finish(place, count, lane.socket, lane.hello.environment)
    except EnvironmentFault as fault:
        return fault
    except (OSError, AgentEnvError) as problem:
        return lane.fail(problem, doing)
