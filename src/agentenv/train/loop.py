"""What happens between two updates of a training: measurements, evaluations, checkpoints, and stopping when asked to.

All of it happens at the start of a rollout, where the learner is complete: the last update is done and no new experience is under way. So a
checkpoint is exact, and evaluating more or less often changes nothing of what is learned.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from agentenv.config import TrainingConfig
from agentenv.errors import NotFound
from agentenv.monitoring import RunDirectory, RunWriter
from agentenv.train import checkpoint, rng
from agentenv.train.evaluation import Evaluation
from agentenv.train.interrupt import StopRequest
from agentenv.train.progress import Progress, Standing
from agentenv.train.vec_env import GymnasiumVecEnv

MOST_ROWS = 400
"""About so many rows of metrics over a whole training: enough for any plot, however short a rollout is."""

CHECKPOINTS_KEPT = 3
SHOWN_EVERY = 0.25
"""Seconds between two looks at the figures for the display."""


class Stopped(Exception):
    """Leaves the learner's own loop from between two updates; never leaves the pipeline."""


@dataclass(slots=True)
class Notes:
    """What the pipeline itself must remember from one session of a run to the next; part of each checkpoint.

    `evaluations` are [step, mean return, mean best possible or None], `training` are [step, mean return of the latest episodes];
    `seconds` is the time spent by earlier sessions.
    """

    random_return: float = math.nan
    evaluations: list[list[Any]] = field(default_factory=list)
    training: list[list[Any]] = field(default_factory=list)
    logged_at: int = 0
    seconds: float = 0.0

    @property
    def optimal(self) -> float | None:
        return self.evaluations[-1][2] if self.evaluations else None

    @property
    def evaluated_at(self) -> int:
        return int(self.evaluations[-1][0]) if self.evaluations else -1

    @property
    def eval_return(self) -> float | None:
        return self.evaluations[-1][1] if self.evaluations else None

    def fraction(self) -> float | None:
        """The latest evaluation over the best possible."""
        return self.eval_return / self.optimal if self.eval_return is not None and self.optimal is not None and self.optimal > 0 else None


class TrainingLoop(BaseCallback):
    """The callback that stable-baselines3's loop calls. `evaluate` plays one evaluation of the policy as it is.

    `counted` is what the training process has counted, as Prometheus text, which goes into the run's directory with each row.
    `target` is the number of steps after which the training ends, rounded to whole updates; at `stop_at` steps it stops as if asked to.
    """

    def __init__(
        self,
        training: TrainingConfig,
        envs: GymnasiumVecEnv,
        writer: RunWriter,
        progress: Progress,
        stop: StopRequest,
        evaluate: Callable[[], Evaluation],
        counted: Callable[[], str],
        *,
        target: int,
        stop_at: int | None = None,
    ) -> None:
        super().__init__()
        self.notes = Notes()
        self.saved: Path | None = None
        self._training = training
        self._envs = envs
        self._writer = writer
        self._progress = progress
        self._stop = stop
        self._evaluate = evaluate
        self._counted = counted
        self._target = target
        self._stop_at = stop_at
        self._row_every = max(training.max_steps // MOST_ROWS, 1)
        self._checkpointed_at = 0
        self._at_first_rollout: Callable[[], None] | None = None
        self._started = time.monotonic()
        self._shown_at = 0.0
        self._speed: deque[tuple[float, int]] = deque(maxlen=40)

    @property
    def seconds(self) -> float:
        """Spent on this run so far, by all its sessions."""
        return self.notes.seconds + time.monotonic() - self._started

    def resume(self, notes: Notes, step: int, path: Path, at_first_rollout: Callable[[], None]) -> None:
        """Goes on with what an earlier session knew at `step`, when it wrote the checkpoint `path`, which was at the start of a rollout.

        `at_first_rollout` is called at that same point of the first rollout.
        """
        self.notes = notes
        self._at_first_rollout = at_first_rollout
        self.saved = path
        self._checkpointed_at = step

    def evaluate_now(self) -> Evaluation:
        """Plays an evaluation, without any trace in the learner's random numbers, and records it."""
        with rng.preserved(self.model.action_space):
            evaluation = self._evaluate()
        step = int(self.model.num_timesteps)
        self.notes.evaluations.append([step, evaluation.mean_return, evaluation.mean_optimal])
        fraction = evaluation.fraction_of_optimal
        values = {"eval_return": evaluation.mean_return, "eval_deviation": evaluation.deviation, "eval_length": evaluation.mean_length}
        if fraction is not None:
            values["eval_fraction_of_optimal"] = fraction
        self._writer.log(step, **values)
        self._writer.write_prometheus(self._counted())
        self._writer.events.emit("training.evaluated", step=step, **asdict(evaluation))
        for name, value in values.items():
            self.model.logger.record(f"eval/{name.removeprefix('eval_')}", value)
        self._progress.evaluated(step, evaluation.mean_return, fraction)
        return evaluation

    def save(self, *, in_rollout: bool = True) -> Path:
        """Writes a checkpoint of this moment, the start of a rollout or the very end, and removes the oldest beyond `CHECKPOINTS_KEPT`."""
        step = int(self.model.num_timesteps)
        path = self._writer.run.checkpoints / checkpoint_name(step)
        notes = asdict(self.notes) | {"seconds": self.seconds}
        checkpoint.write(checkpoint.capture(self.model, self._envs, notes, in_rollout=in_rollout), path)
        for old in checkpoints_in(path.parent)[:-CHECKPOINTS_KEPT]:
            old.unlink()
        self._writer.events.emit("training.checkpoint", step=step, path=str(path))
        self._checkpointed_at = step
        self.saved = path
        return path

    def close_books(self) -> None:
        """After the last update: the last row, the last evaluation and the last checkpoint, each unless it is there already."""
        step = int(self.model.num_timesteps)
        if step > self.notes.logged_at:
            self._log(step)
        if step != self.notes.evaluated_at:
            self.evaluate_now()
            self.model.logger.dump(step)
        if self.saved is None or self._checkpointed_at != step:
            self.save(in_rollout=False)

    def _on_step(self) -> bool:
        now = time.monotonic()
        if now - self._shown_at >= SHOWN_EVERY:
            self._shown_at = now
            self._speed.append((now, int(self.model.num_timesteps)))
            self._progress.update(self._standing())
        return True

    def _on_rollout_start(self) -> None:
        if self._at_first_rollout is not None:
            self._at_first_rollout()
            self._at_first_rollout = None
        step = int(self.model.num_timesteps)
        if step - self.notes.logged_at >= self._row_every:
            self._log(step)
        if (every := self._training.eval_every) and step // every > max(self.notes.evaluated_at, 0) // every:
            self.evaluate_now()
        if (every := self._training.checkpoint_every) and step // every > self._checkpointed_at // every:
            self.save()
        if self._stop.requested or (self._stop_at is not None and step >= self._stop_at):
            raise Stopped

    def _log(self, step: int) -> None:
        """One row of metrics and the same values for TensorBoard."""
        logger = self.model.logger
        recorded = {
            name.partition("/")[2]: value for name, value in logger.name_to_value.items() if name.startswith(("train/", "rollout/"))
        }
        values: dict[str, Any] = {"episodes": self._envs.episodes, "infra_errors": self._envs.infra_errors}
        return_mean, optimal, length = self._recent()
        if return_mean is not None:
            values |= {"return_mean": return_mean, "length_mean": length}
            self.notes.training.append([step, return_mean])
            logger.record("rollout/ep_rew_mean", return_mean)
            logger.record("rollout/ep_len_mean", length)
            if optimal is not None and optimal > 0:
                values["fraction_of_optimal"] = return_mean / optimal
                logger.record("rollout/fraction_of_optimal", return_mean / optimal)
        speed = self._steps_per_second()
        logger.record("time/steps_per_second", speed)
        logger.record("rollout/infra_errors", self._envs.infra_errors)
        losses = [recorded[name] for name in ("loss", "critic_loss") if name in recorded]
        if "policy_loss" in recorded and "value_loss" in recorded:
            losses.append(recorded["policy_loss"] + recorded["value_loss"])
        self._writer.log(step, **(recorded | values | {"steps_per_second": speed} | ({"loss": losses[0]} if losses else {})))
        self._writer.write_prometheus(self._counted())
        logger.dump(step)
        self.notes.logged_at = step

    def _recent(self) -> tuple[float | None, float | None, float | None]:
        """Mean return, best possible and length of the latest (at most 100) episodes."""
        episodes = self.model.ep_info_buffer
        if not episodes:
            return None, None, None
        optimal = float(np.mean([episode["optimal"] for episode in episodes])) if all("optimal" in one for one in episodes) else None
        return float(np.mean([episode["r"] for episode in episodes])), optimal, float(np.mean([episode["l"] for episode in episodes]))

    def _steps_per_second(self) -> float:
        """Over the last ten seconds or so."""
        now, step = time.monotonic(), int(self.model.num_timesteps)
        began, first = self._speed[0] if self._speed else (self._started, 0)
        return (step - first) / (now - began) if now > began else 0.0

    def _standing(self) -> Standing:
        return_mean, optimal, _ = self._recent()
        step, speed = int(self.model.num_timesteps), self._steps_per_second()
        return Standing(
            step=step,
            max_steps=self._target,
            seconds=self.seconds,
            steps_per_second=speed,
            eta=max(self._target - step, 0) / speed if speed > 0 else None,
            episodes=self._envs.episodes,
            return_mean=return_mean,
            optimal=optimal,
            eval_return=self.notes.eval_return,
            eval_fraction=self.notes.fraction(),
            infra_errors=self._envs.infra_errors,
            curve=tuple(value for _, value in self.notes.training),
        )


def checkpoint_name(step: int) -> str:
    """File names sort by their step."""
    return f"step-{step:012d}.pt"


def checkpoints_in(directory: Path) -> list[Path]:
    """A run's checkpoints, the oldest first."""
    return sorted(directory.glob("step-*.pt"))


def latest_checkpoint(run: RunDirectory) -> Path:
    """The newest checkpoint of a run. Raises `NotFound` where it has none."""
    found = checkpoints_in(run.checkpoints)
    if not found:
        raise NotFound(f"run {run.id} has no checkpoint yet, so there is nothing to go on from.", remedy="Start it anew.")
    return found[-1]
