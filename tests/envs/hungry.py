"""An environment that takes memory until somebody stops it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentenv.envs import Environment, spaces


class Hungry(Environment):
    """Eats."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        eaten = []
        while True:
            eaten.append(bytearray(b"x" * (1 << 20)))
