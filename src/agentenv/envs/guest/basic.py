"""`basic_rl_env`: bring sixteen real files into a wanted layout, one at a time."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, Final

from agentenv.envs.guest.environment import Environment
from agentenv.envs.guest.spaces import Box, Discrete

FILES: Final = 16
MAX_STEPS: Final = 64
MATCH_BONUS: Final = 5.0
_BITS: Final = tuple(array("f", [byte >> bit & 1 for bit in range(8)]).tobytes() for byte in range(256))
"""For each byte its bits as eight float32, the lowest first."""

_MODE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class BasicRLEnv(Environment):
    """Sixteen files in `directory` may exist or not; the seed draws how they lie at first and another layout that is wanted.

    Observation: float32[32], sixteen bits of what the directory really holds and sixteen of what is wanted. Action: 0-15, that file is
    created if it is missing and removed if it is there; or a score for each file, of which the highest acts. Reward: +1 for a step nearer
    to the wanted layout, -1 for one away from it, and 5 more for the step that reaches it, which ends the episode (terminated). After 64
    steps it is truncated.

    `info["optimal_return"]` is the best possible sum of rewards: with d files wrong at first, d right steps earn d, and the last one 5
    more. No detour can earn anything, because each step away costs what the step back earns.
    """

    observation_space = Box(0.0, 1.0, (2 * FILES,), "float32")
    action_space = Discrete(FILES)
    render_modes = ("ansi",)
    accepts_scores = True

    def __init__(self, directory: str = "/workspace", render_mode: str | None = None) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.render_mode = render_mode
        self._names = [f"file-{number:02d}" for number in range(FILES)]
        self._paths = [str(self.directory / name) for name in self._names]
        self._index = {name: number for number, name in enumerate(self._names)}
        self._present = self._target = 0
        self._wanted = b""
        self._distance = 0
        self._steps = 0
        self._optimal = 0.0

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[array[float], dict[str, Any]]:
        """Draws and lays out a new episode. `options` may name a `target`: sixteen bits as an integer."""
        self.seed_random(seed)
        initial = self.random.getrandbits(FILES)
        wanted = initial ^ (1 + self.random.randrange((1 << FILES) - 1))
        target = int((options or {}).get("target", wanted))
        if not 0 <= target < 1 << FILES:
            raise ValueError(f"options['target'] is {target}; it must be from 0 to {(1 << FILES) - 1}")
        self._lay_out(initial if initial != target else initial ^ 1)
        self._begin(target)
        self._optimal = self._distance + MATCH_BONUS
        return self._observation(), {"optimal_return": self._optimal}

    def step(self, action: int | Sequence[float]) -> tuple[array[float], float, bool, bool, dict[str, Any]]:
        """Creates or removes one file, then looks at what is really there."""
        path = self._paths[chosen(action)]
        try:
            os.unlink(path)  # noqa: PTH108 - pathlib costs a third of the step
        except FileNotFoundError:
            os.close(os.open(path, _MODE, 0o644))
        before = self._distance
        self._look()
        self._steps += 1
        terminated = self._distance == 0
        reward = float((before > self._distance) - (before < self._distance)) + (MATCH_BONUS if terminated else 0.0)
        truncated = not terminated and self._steps >= MAX_STEPS
        return self._observation(), reward, terminated, truncated, {"optimal_return": self._optimal}

    def render(self) -> str | None:
        """Two rows of marks: what is there, what is wanted."""
        if self.render_mode != "ansi":
            return None
        marks = "".join("#" if bit else "." for bit in self._observation())
        return f"files  {marks[:FILES]}\nwanted {marks[FILES:]}\n"

    def save(self) -> bytes:
        """The episode: both layouts, the step, the state of the random numbers."""
        version, words, gauss = self.random.getstate()
        state = {
            "present": self._present,
            "target": self._target,
            "steps": self._steps,
            "optimal": self._optimal,
            "random": [version, list(words), gauss],
        }
        return json.dumps(state).encode()

    def load(self, state: bytes) -> None:
        """Lays the files out as they were, and goes on from there."""
        saved = json.loads(state)
        version, words, gauss = saved["random"]
        self.seed_random(None)
        self.random.setstate((version, tuple(words), gauss))
        self._lay_out(saved["present"])
        self._begin(saved["target"])
        self._steps, self._optimal = saved["steps"], saved["optimal"]

    def _begin(self, target: int) -> None:
        self._target = target
        self._wanted = _BITS[target & 255] + _BITS[target >> 8]
        self._steps = 0
        self._look()

    def _lay_out(self, wanted: int) -> None:
        """Creates and removes files until exactly the wanted ones exist."""
        present = self._scan()
        for number, path in enumerate(self._paths):
            if (wanted ^ present) >> number & 1:
                if wanted >> number & 1:
                    os.close(os.open(path, _MODE, 0o644))
                else:
                    os.unlink(path)  # noqa: PTH108

    def _scan(self) -> int:
        """The files that are really there, as bits."""
        index = self._index
        present = 0
        for name in os.listdir(self.directory):  # noqa: PTH208 - one system call less than scandir's entries, and the names are all it takes
            number = index.get(name)
            if number is not None:
                present |= 1 << number
        return present

    def _look(self) -> None:
        self._present = self._scan()
        self._distance = (self._present ^ self._target).bit_count()

    def _observation(self) -> array[float]:
        present = self._present
        return array("f", _BITS[present & 255] + _BITS[present >> 8] + self._wanted)


def chosen(action: int | Sequence[float]) -> int:
    """The file that an action means: the integer itself, or the place of the highest score (the first of equals).

    Raises ValueError for an integer out of range, another number of scores, or a score that is not a number.
    """
    if isinstance(action, (int, float)) or not hasattr(action, "__len__"):
        number = index(action) if hasattr(action, "__index__") else -1
        if 0 <= number < FILES:
            return number
        raise ValueError(f"action {action!r} is not one of 0 to {FILES - 1}")
    scores = [float(score) for score in action]
    if len(scores) != FILES or any(math.isnan(score) for score in scores):
        raise ValueError(f"an action by scores takes {FILES} numbers, got {action!r}")
    return max(range(FILES), key=scores.__getitem__)
