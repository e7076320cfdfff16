"""Runs a run again from its manifest and says whether the same came out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import NotFound
from agentenv.monitoring import RunDirectory, find_run
from agentenv.train.environments import MakeEnvs, sandboxed
from agentenv.train.jobs import recorded_config
from agentenv.train.manifest import differences, versions
from agentenv.train.pipeline import train
from agentenv.train.progress import Progress, automatic


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A run beside its repetition.

    `warnings` say what was different from the start (versions, code); `same_parameters` is whether the policies are equal to the last bit;
    `largest_difference` is that between the mean returns of any two corresponding evaluations (0.0 when the curves are the same).
    """

    original: Path
    repetition: Path
    warnings: tuple[str, ...]
    same_parameters: bool
    evaluations_compared: int
    largest_difference: float

    @property
    def same(self) -> bool:
        """Whether parameters and learning curves are equal."""
        return self.same_parameters and self.largest_difference == 0.0

    def lines(self) -> list[str]:
        """The verdict for a person."""
        verdict = f"Reproduced exactly: the same parameters and the same {self.evaluations_compared} evaluations."
        if not self.same:
            verdict = (
                f"Not the same: parameters {'equal' if self.same_parameters else 'differ'}, "
                f"evaluations differ by up to {self.largest_difference:.4g} (over {self.evaluations_compared})."
            )
        return [verdict, f"Original: {self.original}", f"Repetition: {self.repetition}"]


def reproduce(
    run: str | Path | None = None,
    *,
    run_dir: str | Path | None = None,
    progress: Progress | None = None,
    make_envs: MakeEnvs = sandboxed,
) -> Reproduction:
    """Trains again with a run's configuration and seed, as far as that run came, in a new run under `run_dir`, and compares the two.

    Raises `NotFound` where the run has no manifest or no result to compare with.
    """
    original = find_run(run)
    config = recorded_config(original)
    before = original.result()
    if before is None:
        raise NotFound(f"run {original.id} has no result to compare with.", remedy="Let it finish first, with `agentenv train --resume`.")
    display = progress or automatic()
    warnings = tuple(_warnings(original))
    for warning in warnings:
        display.say(f"Warning: {warning}")
    stop_at = None if before["state"] == "finished" else int(before["steps"])
    result = train(config, run_dir=run_dir or original.path.parent, progress=display, make_envs=make_envs, stop_at=stop_at)
    pairs = _paired(original, RunDirectory.open(result.run))
    return Reproduction(
        original=original.path,
        repetition=result.run,
        warnings=warnings,
        same_parameters=before["parameters"] == result.parameters,
        evaluations_compared=len(pairs),
        largest_difference=max((abs(one - other) for one, other in pairs), default=0.0),
    )


def _warnings(run: RunDirectory) -> list[str]:
    recorded: dict[str, Any] = run.manifest()
    found = differences(recorded.get("versions", {}), versions())
    if any(not session.get("exact", True) for session in recorded.get("sessions", [])):
        found.append("the run was resumed with an environment that cannot be saved, so its episodes cannot be repeated")
    if (recorded.get("git") or {}).get("dirty"):
        found.append("the run's working tree had changes that were not committed")
    return found


def _paired(one: RunDirectory, other: RunDirectory) -> list[tuple[float, float]]:
    """Mean returns of the evaluations that both runs made at the same step."""
    first, second = (
        {int(row["step"]): float(row["eval_return"]) for row in run.metrics() if row.get("eval_return") is not None} for run in (one, other)
    )
    return [(first[step], second[step]) for step in sorted(first.keys() & second.keys())]
