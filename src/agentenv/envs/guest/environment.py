"""What a user writes: a class with spaces, `reset` and `step`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from agentenv.envs.guest.spaces import Space


class Environment:
    """Base class of environments that run inside a sandbox. It needs neither numpy nor gymnasium.

    A subclass sets `observation_space` and `action_space` (`agentenv.envs.spaces`, or Gymnasium's where the image has it) and defines
    `reset` and `step`. Its constructor takes the keyword arguments that the host gives as `options`, and `render_mode` when the host asks
    for one.

    Two optional methods make an episode portable, so that `snapshot`, `restore` and `fork` work on every backend:
    `save() -> bytes` and `load(state: bytes) -> None`. What they put into the bytes is theirs alone; the host never looks inside.
    """

    observation_space: Space
    action_space: Space
    render_modes: ClassVar[tuple[str, ...]] = ()
    """The modes that `render` knows ("rgb_array", "ansi", …)."""
    render_fps: ClassVar[int | None] = None
    accepts_scores: ClassVar[bool] = False
    """With a Discrete action space: the host may hand a score for each choice instead, and the highest (the first of equals) is taken."""
    render_mode: str | None = None
    random: random.Random
    """The environment's source of chance; `seed_random` makes it repeatable."""

    def seed_random(self, seed: int | None) -> None:
        """Starts `self.random` anew from `seed`; without one it goes on, or starts from the kernel's entropy."""
        if seed is not None or not hasattr(self, "random"):
            self.random = random.Random(seed)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode: returns (observation, info). Call `self.seed_random(seed)` first where chance plays a part."""
        raise NotImplementedError(f"{type(self).__name__} does not define reset()")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Acts: returns (observation, reward, terminated, truncated, info), as Gymnasium's `Env.step` does."""
        raise NotImplementedError(f"{type(self).__name__} does not define step()")

    def render(self) -> Any:
        """What `render_mode` asks for; None where the environment shows nothing."""
        return None

    def close(self) -> None:
        """Frees what the environment holds."""
        return


@runtime_checkable
class Portable(Protocol):
    """An environment whose episode can be taken out of the process and put into another."""

    def save(self) -> bytes: ...

    def load(self, state: bytes) -> None: ...
