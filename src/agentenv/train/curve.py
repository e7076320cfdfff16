"""The learning curve as a picture: returns while training and in evaluations, between chance and the best possible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Points = Sequence[tuple[int, float]]


def draw(path: Path, *, title: str, training: Points, evaluations: Points, chance: float | None, optimal: float | None) -> None:
    """Writes a PNG to `path`. Points are (environment steps, mean return); `chance` and `optimal` are drawn as lines where known."""
    figure = Figure(figsize=(8, 4.5), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.09, 0.12, 0.88, 0.79))
    if training:
        axes.plot(*zip(*training, strict=True), color="tab:blue", alpha=0.6, linewidth=1.2, label="training episodes")
    if evaluations:
        axes.plot(*zip(*evaluations, strict=True), color="tab:orange", marker="o", markersize=4, label="evaluation")
    if optimal is not None:
        axes.axhline(optimal, color="tab:green", linestyle="--", label="optimal")
    if chance is not None:
        axes.axhline(chance, color="tab:gray", linestyle=":", label="random actions")
    axes.set(title=title, xlabel="environment steps", ylabel="mean return")
    axes.margins(y=0.1)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right")
    partial = path.with_name(f".{path.name}.partial")
    figure.savefig(partial, format="png")
    partial.replace(path)
