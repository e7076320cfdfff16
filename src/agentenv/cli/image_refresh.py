"""`agentenv image refresh`: the age of base images and templates, and newer ones for those that are too old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated

import typer

from agentenv.cli import wishes
from agentenv.cli.image_store import store
from agentenv.cli.output import JsonFlag, console, print_json
from agentenv.cli.progress import bars
from agentenv.images import ImageStore, freshness
from agentenv.node import Node
from agentenv.node.templates import TemplateRecord, Templates
from agentenv.paths import state_home
from agentenv.templates import BuildLine
from agentenv.templates.renewal import Renewed, is_renewable, renew_templates

Row = dict[str, object]


def refresh(
    older_than: Annotated[str, typer.Option(help="Only what was obtained longer ago than this: 12h, 7d.")] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how old they are.")] = False,
    templates: Annotated[bool, typer.Option("--templates/--no-templates", help="Build templates anew too, after their bases.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Says how old each base image and template is, and pulls or builds anew those that are too old."""
    limit = wishes.seconds(older_than, "--older-than") or 0.0
    images = store()
    found = freshness.base_images(images)
    done: list[freshness.Refreshed] = []
    if not dry_run:
        done = _images(images, limit, quiet=as_json)
    images.close()
    records = Templates(state_home()).all() if templates else []
    built = asyncio.run(_templates(limit, quiet=as_json)) if records and not dry_run else []
    outcomes: dict[str, freshness.Refreshed | Renewed] = {one.image.name: one for one in done}
    outcomes |= {one.record.label: one for one in built}
    rows = [_image_row(image, limit, outcomes) for image in found] + [_template_row(record, limit, outcomes) for record in records]
    _show(rows, as_json=as_json)
    if any(one.error for one in outcomes.values()):
        raise typer.Exit(1)


def _images(images: ImageStore, limit: float, *, quiet: bool) -> list[freshness.Refreshed]:
    if quiet:
        return freshness.refresh(images, limit)
    with bars("refreshing") as progress:
        return freshness.refresh(images, limit, progress)


async def _templates(limit: float, *, quiet: bool) -> list[Renewed]:
    def tell(line: BuildLine) -> None:
        if not quiet:
            typer.echo(f"  {line.message}", err=True)

    def begun(record: TemplateRecord) -> None:
        if not quiet:
            typer.secho(f"template {record.label}", bold=True, err=True)

    async with await Node.open() as node:
        return await renew_templates(node, limit, tell, begun=begun)


def _image_row(image: freshness.BaseImage, limit: float, outcomes: Mapping[str, freshness.Refreshed | Renewed]) -> Row:
    now = time.time()
    made = None if image.made is None else _days(now - image.made)
    result = _result(outcomes.get(image.name), image.age(now), limit, renewable=image.renewable)
    return {"name": image.name, "reference": image.reference, "obtained_days_ago": _days(image.age(now)), "made_days_ago": made,
            "result": result}  # fmt: skip


def _template_row(record: TemplateRecord, limit: float, outcomes: Mapping[str, freshness.Refreshed | Renewed]) -> Row:
    age = max(time.time() - record.created, 0.0)
    result = _result(outcomes.get(record.label), age, limit, renewable=is_renewable(record))
    return {"name": f"template:{record.label}", "reference": record.snapshot, "obtained_days_ago": _days(age), "made_days_ago": None,
            "result": result}  # fmt: skip


def _result(outcome: freshness.Refreshed | Renewed | None, age: float, limit: float, *, renewable: bool) -> str:
    if outcome is None:
        return "cannot be renewed" if not renewable else "fresh enough" if age < limit else "too old"
    return f"failed: {outcome.error}" if outcome.error else "renewed" if outcome.changed else "nothing newer"


def _days(seconds: float) -> float:
    return round(seconds / freshness.DAY, 1)


def _show(rows: list[Row], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo("No image with a name is kept, and no template.")
        return
    from rich.table import Table

    table = Table("name", "obtained", "made", "result")
    for row in rows:
        made = row["made_days_ago"]
        shown = "" if made is None else f"{made} d ago"
        table.add_row(str(row["name"]), f"{row['obtained_days_ago']} d ago", shown, str(row["result"]))
    console().print(table)
