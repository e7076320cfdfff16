"""`agentenv image`: the images that are kept on this machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agentenv.cli.image_refresh import refresh
from agentenv.cli.image_store import store
from agentenv.cli.lazy import new_app
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.cli.progress import bars
from agentenv.errors import CapabilityError, NotFound
from agentenv.images import Image, Progress, debian
from agentenv.images.oci.export import export_image
from agentenv.units import format_size

app = new_app("Lists, adds and removes the images that are kept on this machine.")


@app.command("ls")
def ls(as_json: JsonFlag = False) -> None:
    """Lists the kept images: pulled ones, archives that were unpacked, and the bottom layers of `host`."""
    images = store().list()
    if as_json:
        print_json([asdict(image) for image in images])
    elif images:
        from rich.table import Table

        table = Table("name", "id", "size", "made", "in use")
        for image in images:
            made = dt.datetime.fromtimestamp(image.created).astimezone().strftime("%Y-%m-%d %H:%M")
            name = "\n".join(image.names) or image.reference.partition(":")[0].replace("sha256", "")
            table.add_row(name, _short(image), format_size(image.size), made, "yes" if image.in_use else "")
        console().print(table)
        typer.echo(f"{format_size(store().disk_usage())} in all; layers that images share count once.")
    else:
        typer.echo("No image is kept yet. `agentenv image pull REGISTRY/NAME:TAG` brings one, `agentenv image add tar:PATH` unpacks one.")


def _short(image: Image) -> str:
    return f"sha256:{image.reference.removeprefix('sha256:')[:12]}" if image.reference.startswith("sha256:") else image.id


@app.command("pull")
def pull(
    references: Annotated[list[str], typer.Argument(help="REGISTRY/NAME:TAG, oci:PATH, docker-daemon:NAME or podman:NAME.")],
    as_json: JsonFlag = False,
) -> None:
    """Brings images here, or what their names mean now; layers that are here already are not fetched again."""
    images, pulled = store(), []
    for reference in references:
        if as_json:
            root = images.pull(reference)
        else:
            with bars(reference) as progress:
                root = images.pull(reference, progress)
            typer.echo(f"{reference} is {root.image} now: `agentenv shell --image {reference}`")
        pulled.append({"name": reference, "reference": root.image})
    images.close()
    if as_json:
        print_json(pulled)


@app.command("export")
def export(
    reference: Annotated[str, typer.Argument(help="Any image but `host`.")],
    target: Annotated[Path, typer.Argument(help="The new file; `oci:FILE`, `podman load` and `docker load` read it.")],
    as_json: JsonFlag = False,
) -> None:
    """Writes an image into one file, an archive of an OCI layout."""
    images = store()
    root = images.resolve(reference)
    if len(root.trees) != 1:
        raise CapabilityError(f"the image {reference!r} is this machine's own directories, which are not to be exported.")
    facts = images.facts(f"oci-{root.image.removeprefix('sha256:')}") or {}
    if as_json:
        export_image(root, target, name=reference, config=facts.get("config"), progress=None)
        print_json({"file": str(target.absolute()), "size": target.stat().st_size})
    else:
        with bars(reference) as progress:
            export_image(root, target, name=reference, config=facts.get("config"), progress=progress)
        typer.echo(f"{target} holds {reference} ({format_size(target.stat().st_size)}): `agentenv shell --image oci:{target}`")
    images.close()


app.command("refresh")(refresh)


@app.command("add")
def add(reference: Annotated[str, typer.Argument(help="tar:PATH, the archive of a root file system.")], as_json: JsonFlag = False) -> None:
    """Unpacks an archive now instead of at its first use, with a progress bar."""
    images = store()
    if as_json:
        root = images.resolve(reference)
    else:
        with bars(reference) as progress:
            root = images.resolve(reference, progress)
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
