"""The templates of a server, as `agentenv template` asks for them and shows them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import typer

from agentenv.cli.output import console
from agentenv.cli.server_access import ask
from agentenv.config.login import Login
from agentenv.errors import NotFound
from agentenv.units import format_size

PAGE = 100
"""Lines of a build's log that a server tells at once."""


def all_of(server: Login) -> list[dict[str, Any]]:
    """Every template of the key's tenant, the newest first, and those that come with the server, marked by `builtIn`."""
    own, given = ask(server, "GET", "/templates"), ask(server, "GET", "/default-templates")
    return [{**one, "builtIn": one in given} for one in [*own, *given]]


def find(server: Login, name: str) -> dict[str, Any]:
    """A template with its builds and `tags`. Raises `NotFound`."""
    found: dict[str, Any] = ask(server, "GET", f"/templates/{quote(name, safe='')}")
    found["tags"] = ask(server, "GET", f"/templates/{found['templateID']}/tags")
    return found


def remove(server: Login, name: str) -> str:
    """Removes the template `NAME` with all its builds, or of `NAME:TAG` that tag alone; says what was done. Raises `NotFound`."""
    template, _, tag = name.partition(":")
    if tag:
        ask(server, "DELETE", "/templates/tags", {"name": template, "tags": [tag]})
        return f"{name} removed; the template keeps its builds"
    ask(server, "DELETE", f"/templates/{quote(name, safe='')}")
    return f"{name} removed, with all its builds"


def tag(server: Login, target: str, tags: list[str]) -> dict[str, Any]:
    """Lets tags mean the build that `target` means now. Raises `NotFound`, `InvalidState` where that is not ready."""
    made: dict[str, Any] = ask(server, "POST", "/templates/tags", {"target": target, "tags": tags})
    return made


def log_of(server: Login, name: str, build: str | None) -> Iterator[dict[str, Any]]:
    """The lines of a build, by default the template's latest, as far as it is. Raises `NotFound`."""
    found = find(server, name)
    if build is None:
        if not found["builds"]:
            raise NotFound(f"template {name!r} was not built yet.", remedy="`agentenv build DIRECTORY -t NAME` builds one.")
        build = str(found["builds"][0]["buildID"])
    place, told = f"/templates/{found['templateID']}/builds/{quote(build, safe='')}/status", 0
    while lines := ask(server, "GET", f"{place}?logsOffset={told}&limit={PAGE}")["logEntries"]:
        yield from lines
        told += len(lines)


def show_all(templates: list[dict[str, Any]]) -> None:
    """Prints a table of templates."""
    from rich.table import Table

    table = Table("name", "id", "state", "built", "cpu", "memory", "sandboxes made", "seen by")
    for one in templates:
        seen = "all (built in)" if one["builtIn"] else "all" if one["public"] else "its tenant"
        limits = (str(one["cpuCount"]), format_size(one["memoryMB"] << 20))
        table.add_row(_name(one), one["templateID"], one["buildStatus"], _moment(one["updatedAt"]), *limits, str(one["spawnCount"]), seen)
    console().print(table)


def show_one(template: dict[str, Any]) -> None:
    """Prints a template with its builds."""
    from rich.table import Table

    for key, value in {
        "name": _name(template),
        "id": template["templateID"],
        "seen by": "all" if template["public"] else "its tenant",
        "sandboxes made": template["spawnCount"],
    }.items():
        typer.echo(f"{key:16} {value}")
    tags: dict[str, list[str]] = {}
    for one in template["tags"]:
        tags.setdefault(one["buildID"], []).append(one["tag"])
    table = Table("build", "tags", "state", "begun", "cpu", "memory")
    for build in template["builds"]:
        names = ", ".join(tags.get(build["buildID"], ()))
        limits = (str(build["cpuCount"]), format_size(build["memoryMB"] << 20))
        table.add_row(build["buildID"], names, build["status"], _moment(build["createdAt"]), *limits)
    console().print(table)


def _name(template: dict[str, Any]) -> str:
    return ", ".join(template["names"])


def _moment(text: str) -> str:
    return dt.datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")
