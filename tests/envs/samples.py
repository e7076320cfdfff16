"""Environments for the tests, which run inside sandboxes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from agentenv.envs import Environment, spaces


class Counter(Environment):
    """Counts its steps; the episode ends after `length`. Needs neither numpy nor gymnasium."""

    observation_space = spaces.Box(0.0, 1000.0, (2,))
    action_space = spaces.Discrete(3)
    render_modes: ClassVar[tuple[str, ...]] = ("ansi",)

    def __init__(self, length: int = 5, render_mode: str | None = None) -> None:
        self.length = length
        self.render_mode = render_mode
        self.steps = 0
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seed_random(seed)
        self.seeds.append(seed)
        self.steps = int((options or {}).get("start", 0))
        return self._observation(), {"episode": len(self.seeds), "options": dict(options or {})}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._observation(), float(action), self.steps >= self.length, False, {"steps": self.steps} if self.steps % 2 else {}

    def add(self, one: int, *, other: int = 0) -> int:
        return one + other

    def render(self) -> str:
        return f"step {self.steps}\n"

    def _observation(self) -> list[float]:
        return [float(self.steps), float(self.random.randrange(1000))]


class Talker(Environment):
    """Spaces whose values vary in size: it says the text back, in capitals."""

    observation_space = spaces.Dict({"text": spaces.Text(40, 0, "abcdefABCDEF "), "count": spaces.Discrete(100)})
    action_space = spaces.Text(20, 0, "abcdef ")

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return {"text": "", "count": 0}, {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return {"text": action.upper(), "count": self.count}, float(len(action)), False, False, {}


class Troubled(Counter):
    """Does what its action says: 0 counts, 1 raises, 2 does `trouble`."""

    def __init__(self, trouble: str = "hang", when: str = "step") -> None:
        super().__init__(length=1000)
        self.trouble = trouble
        if when == "start":
            self.do(trouble)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options and "trouble" in options:
            self.do(options["trouble"])
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == 1:
            raise RuntimeError("the dice fell off the table")
        if action == 2:
            self.do(self.trouble)
        return super().step(action)

    def do(self, trouble: str) -> None:
        sys.stderr.write("a last word\n")
        if trouble == "hang":
            time.sleep(3600)
        elif trouble == "exit":
            os._exit(7)
        elif trouble == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif trouble == "raise":
            raise RuntimeError("no start today")
        elif trouble == "print":
            print("x" * 200_000)
        else:
            raise ValueError(trouble)


class Large(Environment):
    """Observations, actions and infos that no single read of a socket takes."""

    observation_space = spaces.Box(0, 255, (400, 600, 3), "uint8")
    action_space = spaces.Box(-1.0, 1.0, (50_000,), "float64")

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return bytes([1]) * 720_000, {"long": "y" * 300_000}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return bytes([2]) * 720_000, float(sum(action)), False, False, {"long": "z" * 5000}
