"""`agentenv conformance`: does a backend do what every sandbox must?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from agentenv.cli.ending import end_in_order_at_sigterm
from agentenv.cli.output import JsonFlag, console, print_json

if TYPE_CHECKING:
    from agentenv.conformance import Subject
    from agentenv.isolation.conformance import Check, Outcome

_COLOURS = {"pass": "green", "fail": "red", "skip": "yellow"}


def conformance(
    name: Annotated[str, typer.Argument(help="The backend, as `agentenv doctor` lists them.")],
    image: Annotated[str | None, typer.Option(help="The image to try it with; by default host, or debian for virtual machines.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this check or group (exec, files, forks, …); may be given again.")] = None,
    cycles: Annotated[int, typer.Option(min=1, help="How many random changes of state are tried in a row.")] = 10,
    seed: Annotated[int, typer.Option(help="Which random changes: a failure is repeated with the same.")] = 0,
    patience: Annotated[float, typer.Option(min=0.1, help="Time-outs are this many times as long.")] = 1.0,
    listing: Annotated[bool, typer.Option("--list", help="Only say what there is to check.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Runs the conformance suite on a backend, other packages' too. Ends with 1 when a check fails."""
    from agentenv.conformance import CHECKS
    from agentenv.isolation.conformance import select

    checks = select(CHECKS, only or [])
    if listing:
        _list(checks, as_json=as_json)
        return
    end_in_order_at_sigterm()
    with _progress(len(checks), quiet=as_json) as show:
        outcomes = asyncio.run(_run(name, image, checks, cycles, seed, patience, show))
    failed = [outcome for outcome in outcomes if outcome.verdict == "fail"]
    if as_json:
        print_json({"backend": name, "ok": not failed, "checks": [outcome.as_dict() for outcome in outcomes]})
    else:
        _show(outcomes)
    if failed:
        raise typer.Exit(1)


class _Show:
    """What is done with each check as it begins and ends; by default nothing."""

    def begin(self, check: str) -> None:
        """The check begins."""

    def end(self, outcome: Outcome) -> None:
        """The check has ended."""


async def _run(
    name: str, image: str | None, checks: list[Check[Subject]], cycles: int, seed: int, patience: float, show: _Show
) -> list[Outcome]:
    from agentenv.conformance import open_subject
    from agentenv.isolation.conformance import run_checks

    outcomes = []
    async with open_subject(name, image, cycles=cycles, seed=seed) as subject:
        async for outcome in run_checks(checks, subject, begin=show.begin, patience=patience):
            outcomes.append(outcome)
            show.end(outcome)
    return outcomes


@contextmanager
def _progress(count: int, *, quiet: bool) -> Iterator[_Show]:
    """A line for each check as it ends, and below them a bar that names the one that runs."""
    if quiet:
        yield _Show()
        return
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task("", total=count)

        class Lines(_Show):
            def begin(self, check: str) -> None:
                bar.update(task, description=check)

            def end(self, outcome: Outcome) -> None:
                mark = f"[{_COLOURS[outcome.verdict]}]{outcome.verdict}[/]"
                why = f"\n      {escape(outcome.message)}" if outcome.message else ""
                bar.console.print(f"{mark}  {outcome.check:<28} {outcome.seconds:7.2f} s  [dim]{escape(outcome.about)}[/]{why}")
                bar.advance(task)

        yield Lines()


def _show(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.traceback:
            typer.echo(f"\n{outcome.check}\n{outcome.traceback.rstrip()}", err=True)
    counts = {verdict: sum(outcome.verdict == verdict for outcome in outcomes) for verdict in _COLOURS}
    seconds = sum(outcome.seconds for outcome in outcomes)
    typer.secho(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped in {seconds:.0f} s", bold=True)


def _list(checks: list[Check[Subject]], *, as_json: bool) -> None:
    if as_json:
        print_json([{"check": one.name, "about": one.about, "needs": one.needs, "unless": one.unless} for one in checks])
        return
    for one in checks:
        needs = f"  [needs {', '.join(one.needs)}]" if one.needs else ""
        typer.echo(f"{one.name:<28} {one.about}{needs}")
