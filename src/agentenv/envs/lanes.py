"""The lanes of a vector environment: opened together, replaced one by one when their sandboxes fail, closed together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import numpy as np

from agentenv.envs.lane import Lane
from agentenv.envs.opening import Plan
from agentenv.errors import AgentEnvError, InfrastructureError, ProtocolError

_MAX_THREADS: Final = 32
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
Item = TypeVar("Item")
Result = TypeVar("Result")


class Lanes:
    """`count` lanes of one plan. A lane that is `broken` stays in its place until `mend` puts a new one there.

    `sends` and `receives` are the methods of the lanes' sockets, looked up once.
    """

    def __init__(self, plan: Plan, count: int, *, max_replacements: int) -> None:
        self._plan = plan
        self._max_replacements = max_replacements
        self._closing = threading.Event()
        self._failures = [0] * count
        self._generations = [0] * count
        self.seeds: list[int | None] = [None] * count
        self.all = self._open(count)
        self.sends = [lane.socket.sendall for lane in self.all]
        self.receives = [lane.socket.recv_into for lane in self.all]

    def _open(self, count: int) -> list[Lane]:
        opened = in_parallel(self._attempt, range(count))
        lanes = [lane for lane in opened if isinstance(lane, Lane)]
        problems = [problem for problem in opened if not isinstance(problem, Lane)]
        if not problems and any(lane.hello != lanes[0].hello for lane in lanes):
            problems.append(ProtocolError("the lanes do not agree on what their environment is."))
        if problems:
            close_all(lanes, gracefully=False)
            raise problems[0]
        return lanes

    def _attempt(self, _: int) -> Lane | AgentEnvError:
        try:
            return Lane.open(self._plan.sandbox, self._plan.spec, self._plan.timeouts)
        except AgentEnvError as problem:
            return problem

    def seed(self, place: int, seed: int | None) -> None:
        """Remembers the seed that a lane is reset with."""
        if seed is not None:
            self.seeds[place], self._generations[place] = seed, 0

    def finished(self, place: int) -> None:
        """A lane has come to the end of an episode, so that its failures so far are forgiven."""
        self._failures[place] = 0

    def mend(self, places: Iterable[int]) -> dict[int, int | None]:
        """Replaces the broken ones among `places`; returns the seed with which each of the new ones is to begin.

        Raises the last failure when a lane has failed more than `max_replacements` times in a row.
        """
        broken = [place for place in places if self.all[place].broken is not None]
        in_parallel(self._replace, broken)
        return {place: self._derived_seed(place) for place in broken}

    def _replace(self, place: int) -> None:
        """Ends a broken lane and opens another in its place, with longer and longer pauses between failures."""
        old = self.all[place]
        problem = old.broken
        old.close(gracefully=False)
        while True:
            self._failures[place] += 1
            failures = self._failures[place]
            if problem is not None and failures > self._max_replacements:
                raise problem
            if failures > 1 and self._closing.wait(min(_FIRST_PAUSE * 2 ** (failures - 2), _LONGEST_PAUSE)) and problem is not None:
                raise problem
            try:
                lane = Lane.open(self._plan.sandbox, self._plan.spec, self._plan.timeouts)
            except InfrastructureError as again:
                problem = again
            else:
                self.all[place], self.sends[place], self.receives[place] = lane, lane.socket.sendall, lane.socket.recv_into
                self._generations[place] += 1
                return

    def _derived_seed(self, place: int) -> int | None:
        """A seed that follows from the lane's own and from how often it was replaced, so that a rerun draws the same."""
        seed = self.seeds[place]
        if seed is None:
            return None
        return int(np.random.SeedSequence([seed, self._generations[place]]).generate_state(1)[0])

    def close(self) -> None:
        """Closes every lane; a replacement that is under way gives up."""
        self._closing.set()
        close_all(self.all, gracefully=True)


def close_all(lanes: Sequence[Lane], *, gracefully: bool) -> None:
    """Closes lanes side by side."""
    in_parallel(lambda lane: lane.close(gracefully=gracefully), lanes)


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results in order. When some calls raise, the first error is raised after all have ended."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _MAX_THREADS), thread_name_prefix="agentenv-lanes") as pool:
        futures = [pool.submit(function, item) for item in items]
    return [future.result() for future in futures]
