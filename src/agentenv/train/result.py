"""How a training ended, for programs (`RunResult`) and in a few lines for a person."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from agentenv.units import format_duration


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a training reached.

    Returns are means over an evaluation's episodes: of uniformly random actions, of the untrained policy, of the policy at the end, and
    the best possible (None where not known). `seconds` sums all sessions of a resumed run. `parameters` is the SHA-256 of the policy's
    final parameters.
    """

    run: Path
    state: Literal["finished", "interrupted"]
    algorithm: str
    environment: str
    steps: int
    max_steps: int
    seconds: float
    episodes: int
    random_return: float
    first_return: float
    final_return: float
    optimal_return: float | None
    fraction_of_optimal: float | None
    infra_errors: int
    parameters: str
    checkpoint: Path

    def to_dict(self) -> dict[str, Any]:
        """Plain data for result.json and JSON lines."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}

    def lines(self) -> list[str]:
        """What a person wants to know at the end: how good it became, where the results lie, how to go on."""
        share = ""
        if self.fraction_of_optimal is not None:
            share = f" ({self.fraction_of_optimal:.0%} of the optimal {self.optimal_return:.2f})"
        reached = (
            f"evaluated return {self.first_return:.2f} before, {self.final_return:.2f} now{share}; "
            f"random actions get {self.random_return:.2f}"
        )
        work = f"{self.algorithm} on {self.environment}: {self.steps:,} steps in {format_duration(self.seconds)}"
        if self.state == "interrupted":
            return [
                f"Stopped: {work} of {self.max_steps:,}; {reached}.",
                f"Everything is saved. Go on with: agentenv train --resume {self.run}",
            ]
        return [f"Done: {work}; {reached}.", f"Results: {self.run} (curve.png, metrics.jsonl, tensorboard/, {self.checkpoint.name})"]
