"""A bar for each thing that goes on at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from agentenv.cli.output import console
from agentenv.images import Progress


@contextmanager
def bars(title: str) -> Iterator[Progress]:
    """Shows what it is told, one bar for each first word (a layer, say); finished ones vanish."""
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    tasks: dict[str, TaskID] = {}
    turn = threading.Lock()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console(), transient=True) as shown:
        shown.add_task(title, total=None)

        def tell(what: str, done: int, total: int) -> None:
            key = what.partition(" ")[0]
            with turn:
                if key not in tasks:
                    tasks[key] = shown.add_task(what)
                shown.update(tasks[key], description=what, completed=done, total=total or None, visible=not what.endswith(" done"))

        yield tell
