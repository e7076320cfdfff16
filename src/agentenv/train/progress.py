"""What a training shows while it runs: a live display on a terminal, plain lines elsewhere, JSON lines for programs, or nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from agentenv.units import format_duration

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.:-=+*#"
CURVE_WIDTH = 60
SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a training stands. `curve` holds the mean returns so far, the oldest first; None stands for what is not known (yet).

    Steps are environment steps over all lanes; `seconds` and `eta` are seconds.
    """

    step: int
    max_steps: int
    seconds: float
    steps_per_second: float
    eta: float | None
    episodes: int
    return_mean: float | None
    optimal: float | None
    eval_return: float | None
    eval_fraction: float | None
    infra_errors: int
    curve: tuple[float, ...]

    @property
    def fraction(self) -> float | None:
        """Mean return of the training episodes over the best possible."""
        known = self.return_mean is not None and self.optimal is not None and self.optimal > 0
        return self.return_mean / self.optimal if known and self.return_mean is not None and self.optimal else None


class Progress(Protocol):
    """Shown what happens, in this order: `begin`, then any of `say`, `update` and `evaluated`, then `end`."""

    def begin(self, title: str, run: Path) -> None:
        """A training of `title` writes to `run`; its sandboxes are about to start."""
        ...

    def say(self, sentence: str) -> None: ...

    def update(self, standing: Standing) -> None:
        """Called after every step; what is shown of it, and how often, is the display's choice."""
        ...

    def evaluated(self, step: int, mean_return: float, fraction: float | None) -> None: ...

    def end(self, lines: Sequence[str], result: dict[str, object]) -> None:
        """It ended: `lines` are for a person, `result` for a program."""
        ...

    def close(self) -> None:
        """Gives the terminal back, whatever happened; idempotent."""
        ...


class SilentProgress:
    """Shows nothing."""

    def begin(self, title: str, run: Path) -> None: ...

    def say(self, sentence: str) -> None: ...

    def update(self, standing: Standing) -> None: ...

    def evaluated(self, step: int, mean_return: float, fraction: float | None) -> None: ...

    def end(self, lines: Sequence[str], result: dict[str, object]) -> None: ...

    def close(self) -> None: ...


class JsonProgress(SilentProgress):
    """One JSON object a line on `stream`, each with an `event`: begin, note, progress, evaluation, end."""

    def __init__(self, stream: TextIO, *, interval: float = 1.0) -> None:
        self._stream = stream
        self._interval = interval
        self._next = 0.0

    def begin(self, title: str, run: Path) -> None:
        self._write("begin", title=title, run=str(run))

    def say(self, sentence: str) -> None:
        self._write("note", text=sentence)

    def update(self, standing: Standing) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._interval
            self._write("progress", **{name: value for name, value in asdict(standing).items() if name != "curve"})

    def evaluated(self, step: int, mean_return: float, fraction: float | None) -> None:
        self._write("evaluation", step=step, mean_return=mean_return, fraction_of_optimal=fraction)

    def end(self, lines: Sequence[str], result: dict[str, object]) -> None:
        self._write("end", **result)

    def _write(self, event: str, **fields: object) -> None:
        self._stream.write(json.dumps({"event": event} | fields) + "\n")
        self._stream.flush()


class PlainProgress(SilentProgress):
    """Lines for a log file or a pipe: one every few seconds and one for each evaluation."""

    def __init__(self, stream: TextIO, *, interval: float = SECONDS_BETWEEN_LINES) -> None:
        self._stream = stream
        self._interval = interval
        self._next = time.monotonic() + interval

    def begin(self, title: str, run: Path) -> None:
        self.say(title)
        self.say(f"Writing to {run}")

    def say(self, sentence: str) -> None:
        self._stream.write(sentence + "\n")
        self._stream.flush()

    def update(self, standing: Standing) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._interval
            self.say(f"step {standing.step:>9,} of {standing.max_steps:,}  " + "  ".join(_figures(standing)))

    def evaluated(self, step: int, mean_return: float, fraction: float | None) -> None:
        self.say(_evaluation(step, mean_return, fraction))

    def end(self, lines: Sequence[str], result: dict[str, object]) -> None:
        for line in lines:
            self.say(line)


class LiveProgress(SilentProgress):
    """A display that redraws itself: progress bar, figures and a learning curve made of block characters."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._utf = "utf" in console.encoding.lower()
        self._starting = Spinner("dots" if self._utf else "line", "starting the sandboxes")
        self._standing: Standing | None = None
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4, transient=True)

    def begin(self, title: str, run: Path) -> None:
        self._console.print(Text(title, style="bold"))
        self._console.print(Text(f"Writing to {run}", style="dim"), soft_wrap=True)
        self._live.start()

    def say(self, sentence: str) -> None:
        self._console.print(Text(sentence))

    def update(self, standing: Standing) -> None:
        self._standing = standing

    def evaluated(self, step: int, mean_return: float, fraction: float | None) -> None:
        self._console.print(Text(_evaluation(step, mean_return, fraction), style="cyan"))

    def end(self, lines: Sequence[str], result: dict[str, object]) -> None:
        self.close()
        for index, line in enumerate(lines):
            # Not wrapped by us, so that a path can be copied whole.
            self._console.print(Text(line, style="bold green" if index == 0 else ""), soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        standing = self._standing
        if standing is None:
            return self._starting
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right")
        bar.add_row(
            ProgressBar(total=standing.max_steps, completed=min(standing.step, standing.max_steps)),
            f"{standing.step:,} of {standing.max_steps:,} steps",
        )
        blocks = BLOCKS if self._utf else ASCII_BLOCKS
        return Group(bar, Text("   ".join(_figures(standing))), Text(sparkline(standing.curve, blocks), style="green"))


def automatic() -> Progress:
    """The live display where standard output is a terminal, plain lines elsewhere."""
    console = Console()
    return LiveProgress(console) if console.is_terminal and not console.is_dumb_terminal else PlainProgress(sys.stdout)


def sparkline(values: Sequence[float], blocks: str = BLOCKS, width: int = CURVE_WIDTH) -> str:
    """`values` as one line of at most `width` characters whose heights are `blocks`, lowest first; neighbours are averaged to fit."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [index * len(values) // columns for index in range(columns + 1)]
    means = [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[round((mean - low) * scale)] for mean in means)


def _figures(standing: Standing) -> list[str]:
    figures = [f"{standing.steps_per_second:,.0f} steps/s"] if standing.steps_per_second else []
    if standing.return_mean is not None:
        share = f" ({standing.fraction:.0%} of optimal)" if standing.fraction is not None else ""
        figures.append(f"return {standing.return_mean:.2f}{share}")
    if standing.eval_return is not None:
        share = f" ({standing.eval_fraction:.0%} of optimal)" if standing.eval_fraction is not None else ""
        figures.append(f"evaluated {standing.eval_return:.2f}{share}")
    if standing.eta is not None:
        figures.append(f"{format_duration(max(round(standing.eta), 0))} left")
    if standing.infra_errors:
        figures.append(f"{standing.infra_errors} sandboxes replaced")
    return figures


def _evaluation(step: int, mean_return: float, fraction: float | None) -> str:
    share = f", {fraction:.0%} of the optimal" if fraction is not None else ""
    return f"evaluated at step {step:,}: mean return {mean_return:.2f}{share}"
