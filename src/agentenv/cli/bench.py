"""`agentenv bench`: measures speed and memory against references of the same run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from agentenv.benchmarks.catalogue import ALL, BENCHMARKS, load
from agentenv.benchmarks.row import Row, Scale
from agentenv.cli.ending import end_in_order_at_sigterm
from agentenv.cli.output import JsonFlag, console
from agentenv.errors import BackendUnavailable


def complete_name() -> list[str]:
    """What the completion script offers for NAME."""
    return [*BENCHMARKS, "all"]


def bench(
    names: Annotated[list[str], typer.Argument(help="Which: " + ", ".join(BENCHMARKS) + ", or all.", autocompletion=complete_name)],
    output: Annotated[Path | None, typer.Option(help="Also write results.jsonl, table.md and plot.png into this folder.")] = None,
    scale: Annotated[float, typer.Option(min=0.001, max=10, help="Do this share of the published amount, for a quick look.")] = 1.0,
    as_json: JsonFlag = False,
) -> None:
    """Measures NAMES, each sample in turn with its reference. Ends with 0 when it measured, whatever the figure.

    Of all, those are left out, and named, that need a backend which this machine does not have.
    """
    end_in_order_at_sigterm()
    everything = "all" in names
    benchmarks = {chosen: load(chosen) for chosen in (ALL if everything else names)}
    rows: list[Row] = []
    for chosen, measure in benchmarks.items():
        if not as_json:
            console().print(f"[dim]measuring {chosen} ...[/dim]")
        try:
            for row in measure(Scale(scale)):
                rows.append(row)
                if as_json:
                    typer.echo(json.dumps(row.as_dict()))
        except BackendUnavailable as error:
            if not everything:
                raise
            typer.echo(f"{chosen}: not measured: {error}", err=True)
    if not as_json:
        print_matrix(rows) if names == ["matrix"] else print_table(rows)
    if output:
        write(rows, output, matrix=names == ["matrix"])
        if not as_json:
            console().print(f"Results lie in {output}/ (results.jsonl, table.md, plot.png).")


CELLS = ("name", "value", "p99", "reference", "reference value", "ratio", "target", "met")


def cells(row: Row) -> tuple[str, ...]:
    """A row as the strings of a table, in the order of `CELLS`."""

    def number(figure: float | None) -> str:
        return "" if figure is None else f"{figure:.3g}" if abs(figure) < 1000 else f"{figure:.0f}"

    met = {True: "yes", False: "no", None: ""}[row.met]
    ratio = f"{row.ratio:.2f}x" if row.ratio is not None else ""
    return (
        row.name,
        f"{number(row.value)} {row.unit}",
        number(row.p99),
        row.reference,
        number(row.reference_value),
        ratio,
        row.target or "",
        met,
    )


def print_table(rows: Sequence[Row]) -> None:
    """Prints the rows as a table, green where a target is met."""
    from rich.table import Table

    table = Table(*CELLS, title=rows[0].machine if rows else None)
    for row in rows:
        table.add_row(*cells(row), style={True: "green", False: "red", None: None}[row.met])
    console().print(table)


def print_matrix(rows: Sequence[Row]) -> None:
    """Prints a line for each measure, with a column for each backend."""
    from rich.table import Table

    from agentenv.benchmarks.matrix import pivot

    header, lines = pivot(rows)
    table = Table(*header, title=rows[0].machine if rows else None)
    for line in lines:
        table.add_row(*line)
    console().print(table)


def write(rows: Sequence[Row], folder: Path, *, matrix: bool) -> None:
    """Writes the rows as JSON lines, as a Markdown table (the matrix, where it is all that was measured) and as a picture."""
    from agentenv.benchmarks.matrix import markdown
    from agentenv.benchmarks.plot import draw

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(row.as_dict()) + "\n" for row in rows))
    header = f"| {' | '.join(CELLS)} |\n|{'---|' * len(CELLS)}\n"
    table = header + "".join(f"| {' | '.join(cells(row))} |\n" for row in rows)
    (folder / "table.md").write_text(markdown(rows) if matrix else table)
    draw(rows, folder / "plot.png")
