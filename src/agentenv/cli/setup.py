"""`agentenv setup`: has the programs and kernels that the backends need and AgentENV does not bring along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.errors import BackendUnavailable, InfrastructureError, NotFound
from agentenv.isolation.artefacts import NEEDS, Artefact, ArtefactStore, Progress


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one artefact: where it lies, or why it cannot be had and how to get it."""

    name: str
    wanted_by: tuple[str, ...]
    path: str | None = None
    version: str | None = None
    origin: str | None = None
    problem: str | None = None
    remedy: str | None = None


def setup(
    isolation: Annotated[list[str] | None, typer.Option("--isolation", "-i", help="Only for this backend; repeatable.")] = None,
    offline: Annotated[Path | None, typer.Option(help="Use no network, only the files of this directory.", file_okay=False)] = None,
    use: Annotated[list[str] | None, typer.Option(help="NAME=PATH: use the one at PATH (kernel=/boot/vmlinuz-6.1); repeatable.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Fetches what the backends need: Firecracker and its jailer, a guest kernel, gVisor's runsc, QEMU.

    Ends with status 1 when something cannot be had, and says how to get it.
    """
    store = ArtefactStore.open(offline=offline.absolute() if offline else None)
    for wish in use or ():
        name, _, path = wish.partition("=")
        if not path:
            raise typer.BadParameter(f"{wish!r} is not NAME=PATH.", param_hint="--use")
        store.give(name, Path(path))
    wanted = _wanted(isolation or list(NEEDS))
    with _progress(quiet=as_json) as progress:
        outcomes = [_obtain(store, name, backends, progress) for name, backends in wanted.items()]
    if as_json:
        print_json([asdict(outcome) for outcome in outcomes])
    else:
        _show(outcomes, store)
    if any(outcome.problem for outcome in outcomes):
        raise typer.Exit(1)


def _wanted(backends: list[str]) -> dict[str, tuple[str, ...]]:
    """The artefacts that the backends need, each with who needs it."""
    wanted: dict[str, tuple[str, ...]] = {}
    for backend in backends:
        if backend not in NEEDS:
            raise NotFound(f"there is nothing to set up for {backend!r}; there are {', '.join(NEEDS)}.")
        for name in NEEDS[backend]:
            wanted[name] = (*wanted.get(name, ()), backend)
    return wanted


def _obtain(store: ArtefactStore, name: str, backends: tuple[str, ...], progress: Progress) -> Outcome:
    try:
        found: Artefact = store.obtain(name, progress=progress)
    except (BackendUnavailable, InfrastructureError) as error:
        return Outcome(name, backends, problem=error.message, remedy=error.remedy)
    return Outcome(name, backends, str(found.path), found.version, found.origin)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress]:
    """One bar for each thing that is done, on stderr, so that results stay alone on stdout."""
    if quiet:
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    tasks: dict[str, TaskID] = {}
    with Bars(
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), console=Console(stderr=True)
    ) as bars:

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bars.update(task, completed=1, total=1)
                tasks[what] = bars.add_task(what, total=None)
            bars.update(tasks[what], completed=done, total=total or None)

        yield tell
        for task in tasks.values():
            bars.update(task, completed=1, total=1)


def _show(outcomes: list[Outcome], store: ArtefactStore) -> None:
    from rich.table import Table

    table = Table("", "what", "version", "from", "for", "where")
    for outcome in outcomes:
        mark = "[red]missing[/]" if outcome.problem else "[green]ready[/]"
        where = outcome.path or ""
        table.add_row(mark, outcome.name, outcome.version or "", outcome.origin or "", ", ".join(outcome.wanted_by), where)
    console().print(table)
    for outcome in outcomes:
        if outcome.problem:
            typer.echo(f"{outcome.name}: {outcome.problem} {outcome.remedy or ''}".rstrip())
    typer.echo(f"Kept in {store.directory}. Virtual machines also need an image with a disk of its own: `agentenv image build debian`.")
