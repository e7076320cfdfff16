"""`agentenv train`, `evaluate` and `reproduce`: from a configuration to a trained agent, and back to its numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentenv.cli.output import JsonFlag, print_json

if TYPE_CHECKING:
    from agentenv.train.assess import Assessment
    from agentenv.train.evaluation import Evaluation
    from agentenv.train.progress import Progress

INTERRUPTED = 130
"""Exit status of a training that was asked to stop, as of any program ended by Ctrl-C."""

RunArgument = Annotated[str, typer.Argument(help="A run's id, the beginning of one, or its directory; `latest` for the latest.")]
RunDir = Annotated[Path | None, typer.Option(help="Where the run's directory is made; by default ./runs.", file_okay=False)]


def train(
    config: Annotated[Path | None, typer.Argument(help="A YAML file with `environment` and `training`; not needed with --resume.")] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Environment steps, in place of the configuration's.")] = None,
    num_envs: Annotated[int | None, typer.Option(min=1, help="Sandboxes side by side, in place of the configuration's.")] = None,
    run_dir: RunDir = None,
    resume: Annotated[str | None, typer.Option(help="Go on with a run: its id, directory, or `latest`.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random, in place of the configuration's.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Trains an agent in isolated sandboxes; shows how it goes, evaluates it, and leaves everything in a run's directory.

    Ctrl-C (or SIGTERM) finishes the update under way, saves, and says how to go on.
    """
    _say_that_loading_takes_a_while()
    if not as_json:
        _say_what_is_weaker()
    from agentenv.train import train as run_training

    result = run_training(
        config, max_steps=max_steps, num_envs=num_envs, run_dir=run_dir, resume=resume, seed=seed, progress=_progress(as_json)
    )
    if result.state == "interrupted":
        raise typer.Exit(INTERRUPTED)


def evaluate(
    run: RunArgument = "latest",
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes to play; by default as configured.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="A step, or a checkpoint's file; by default the newest.")] = None,
    num_envs: Annotated[int | None, typer.Option(min=1, help="Sandboxes side by side; by default as configured.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the episodes; by default the one of the run's own evaluations.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Plays episodes with what a run has learned, and says how good that is beside random actions and the optimum."""
    _say_that_loading_takes_a_while()
    from agentenv.train import evaluate as assess

    found = assess(run, episodes=episodes, checkpoint_at=checkpoint, num_envs=num_envs, seed=seed)
    if as_json:
        print_json({"run": str(found.run), "step": found.step, "policy": _figures(found.policy), "random": _figures(found.chance)})
    else:
        typer.echo("\n".join(_lines(found)))


def reproduce(run: RunArgument = "latest", run_dir: RunDir = None, as_json: JsonFlag = False) -> None:
    """Runs a run again from its manifest and compares parameters and learning curve; exits with 1 where they differ."""
    _say_that_loading_takes_a_while()
    from agentenv.train import reproduce as run_again

    found = run_again(run, run_dir=run_dir, progress=_progress(as_json))
    if as_json:
        print_json(
            {
                "original": str(found.original),
                "repetition": str(found.repetition),
                "same": found.same,
                "same_parameters": found.same_parameters,
                "evaluations_compared": found.evaluations_compared,
                "largest_difference": found.largest_difference,
                "warnings": list(found.warnings),
            }
        )
    else:
        typer.echo("\n".join(found.lines()))
    if not found.same:
        raise typer.Exit(1)


def _say_that_loading_takes_a_while() -> None:
    if sys.stderr.isatty() and "torch" not in sys.modules:
        typer.echo("Loading PyTorch …", err=True)


def _say_what_is_weaker() -> None:
    """Walls or limits that this machine does not allow; a run must not keep quiet about them, and `doctor` has the details."""
    from agentenv.isolation import probe_all

    usable = [probe for probe in probe_all() if probe.usable]
    lost = usable[0].capabilities.lost if usable else ()
    if lost:
        points = "one respect" if len(lost) == 1 else f"{len(lost)} respects"
        typer.echo(
            f"Sandboxes are weaker on this machine than they could be, in {points}; `agentenv doctor` says which, why, and what helps.",
            err=True,
        )


def _progress(as_json: bool) -> Progress:
    from agentenv.train.progress import JsonProgress, automatic

    return JsonProgress(sys.stdout) if as_json else automatic()


def _figures(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "episodes": len(evaluation.returns),
        "mean_return": evaluation.mean_return,
        "deviation": evaluation.deviation,
        "mean_length": evaluation.mean_length,
        "mean_optimal": evaluation.mean_optimal,
        "fraction_of_optimal": evaluation.fraction_of_optimal,
        "lost": evaluation.lost,
    }


def _lines(found: Assessment) -> list[str]:
    policy, chance = found.policy, found.chance
    share = ""
    if policy.fraction_of_optimal is not None:
        share = f", {policy.fraction_of_optimal:.0%} of the optimal {policy.mean_optimal:.2f}"
    lost = f" ({policy.lost} more were lost to failing sandboxes)" if policy.lost else ""
    return [
        f"{found.run.name} at step {found.step:,}: mean return {policy.mean_return:.2f} ± {policy.deviation:.2f} over "
        f"{len(policy.returns)} episodes{lost}{share}.",
        f"Random actions get {chance.mean_return:.2f} ± {chance.deviation:.2f} in the same episodes.",
    ]
