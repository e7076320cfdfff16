"""`agentenv image`: the images that are kept on this machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.errors import NotFound
from agentenv.images import ImageStore, Progress, debian
from agentenv.node.home import Home
from agentenv.units import format_size

app = new_app("Lists, adds and removes the images that are kept on this machine.")


def store() -> ImageStore:
    """The images of this user's AGENTENV_HOME, with those that snapshots need."""
    from agentenv.node.snapshots import SnapshotTree

    home = Home.open()
    return ImageStore(home.path, pinned=SnapshotTree(home.snapshots).needed_images)


@app.command("ls")
def ls(as_json: JsonFlag = False) -> None:
    """Lists the kept images: archives that were unpacked, and the bottom layers of `host`."""
    images = store().list()
    if as_json:
        print_json([asdict(image) for image in images])
    elif images:
        from rich.table import Table

        table = Table("id", "reference", "size", "made", "in use")
        for image in images:
            made = dt.datetime.fromtimestamp(image.created).astimezone().strftime("%Y-%m-%d %H:%M")
            table.add_row(image.id, image.reference, format_size(image.size), made, "yes" if image.in_use else "")
        console().print(table)
    else:
        typer.echo("No image is kept yet. `agentenv image add tar:PATH` unpacks one.")


@app.command("add")
def add(reference: Annotated[str, typer.Argument(help="tar:PATH, the archive of a root file system.")], as_json: JsonFlag = False) -> None:
    """Unpacks an archive now instead of at its first use, with a progress bar."""
    images = store()
    if as_json:
        root = images.resolve(reference)
    else:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console()) as bar:
            task = bar.add_task(reference)
            root = images.resolve(reference, lambda what, done, total: bar.update(task, description=what, completed=done, total=total))
    images.close()
    if as_json:
        print_json({"reference": root.image})
    else:
        typer.echo(f"{root.image} is ready: `agentenv shell --image {root.image}`")


@app.command("build")
def build(
    name: Annotated[str, typer.Argument(help="`debian`: a minimal Debian with Python, which every backend can run.")],
    suite: Annotated[str, typer.Option(help="The Debian release.")] = debian.SUITE,
    as_json: JsonFlag = False,
) -> None:
    """Builds an image from today's packages; the name means it from then on. Takes minutes."""
    if name != debian.NAME:
        raise NotFound(f"there is no recipe for an image {name!r}; there is {debian.NAME}.")
    images = store()
    if as_json:
        root = debian.build(images, suite=suite)
    else:
        with _steps() as progress:
            root = debian.build(images, suite=suite, progress=progress)
    images.close()
    if as_json:
        print_json({"name": name, "reference": root.image})
    else:
        typer.echo(f"{name} is {root.image} now: `agentenv shell --image {name}`")


@contextmanager
def _steps() -> Iterator[Progress]:
    """One bar that names the present step."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with Bars(BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"), console=console()) as bars:
        task = bars.add_task("debian", total=None)
        yield lambda what, done, total: bars.update(task, description=what, completed=done, total=total)


@app.command("rm")
def rm(names: Annotated[list[str], typer.Argument(help="Ids or references of images.")]) -> None:
    """Removes images that nothing uses."""
    images = store()
    for name in names:
        images.remove(name)
        typer.echo(f"{name} removed")


@app.command("prune")
def prune(as_json: JsonFlag = False) -> None:
    """Removes every image that no sandbox and no snapshot uses."""
    removed = store().prune()
    if as_json:
        print_json([asdict(image) for image in removed])
    else:
        freed = sum(image.size for image in removed)
        typer.echo(f"{len(removed)} removed, {format_size(freed)} freed")
