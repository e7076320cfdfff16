"""Learning rates that change over a training: constant, linear and cosine, each with an optional linear warm-up.

The cosine is that of Loshchilov and Hutter, "SGDR" (arXiv:1608.03983), without restarts; the warm-up that of Goyal et al., "Accurate, Large
Minibatch SGD" (arXiv:1706.02677), from zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentenv.config import ScheduleConfig


@dataclass(frozen=True, slots=True)
class LearningRate:
    """The rate of a training of `max_steps` environment steps; a plain number is a constant rate without a warm-up."""

    setting: ScheduleConfig | float
    max_steps: int

    def at(self, step: float) -> float:
        """The rate after `step` environment steps; before the first and after the last it is theirs."""
        if not isinstance(self.setting, ScheduleConfig):
            return float(self.setting)
        step = min(max(step, 0.0), float(self.max_steps))
        warmup = self.setting.warmup_steps(self.max_steps)
        if step < warmup:
            return self.setting.initial * step / warmup
        if self.setting.schedule == "constant":
            return self.setting.initial
        done = (step - warmup) / (self.max_steps - warmup) if self.max_steps > warmup else 1.0
        left = 1.0 - done if self.setting.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
        return self.setting.final + (self.setting.initial - self.setting.final) * left

    def __call__(self, progress_remaining: float) -> float:
        """stable-baselines3's form: `progress_remaining` falls from 1 at the first step to 0 at the last."""
        return self.at((1.0 - progress_remaining) * self.max_steps)

    def describe(self) -> str:
        """One phrase for a person, such as "cosine from 0.001 to 0 after a warm-up of 5000 steps"."""
        if not isinstance(self.setting, ScheduleConfig):
            return f"constant {self.setting:g}"
        shape = f"constant {self.setting.initial:g}"
        if self.setting.schedule != "constant":
            shape = f"{self.setting.schedule} from {self.setting.initial:g} to {self.setting.final:g}"
        warmup = self.setting.warmup_steps(self.max_steps)
        return f"{shape} after a warm-up of {warmup} steps" if warmup else shape
