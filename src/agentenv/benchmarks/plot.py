"""A picture of benchmark rows: each figure as a share of its target, so that one look tells which are met."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentenv.benchmarks.row import Row


def relative_to_target(row: Row) -> float | None:
    """How far the figure is from its target: 1.0 is exactly at it, below 1.0 is better; None without a target."""
    if row.target is None:
        return None
    bound = float(row.target.split()[1].removesuffix("x"))
    figure = row.ratio if row.target.endswith("x") else row.value
    if figure is None:
        return None
    return figure / bound if row.target.startswith("<=") else bound / figure


def draw(rows: Sequence[Row], path: Path) -> None:
    """Writes a PNG with one bar a row that has a target."""
    from matplotlib.figure import Figure

    shown = [(row, share) for row in rows if (share := relative_to_target(row)) is not None]
    figure = Figure(figsize=(9, 1.2 + 0.5 * len(shown)), layout="constrained")
    axes = figure.subplots()
    names = [f"{row.name}  {row.value:.3g} {row.unit}  (target {row.target})" for row, _ in shown]
    colours = ["#2e8b57" if row.met else "#c0392b" for row, _ in shown]
    axes.barh(names, [share for _, share in shown], color=colours)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("share of the target used (left of the line: met)")
    if rows:
        axes.set_title(rows[0].machine, fontsize=9)
    figure.savefig(path, dpi=120)
