"""HTML from the templates in `fragments/`, where every value is escaped, and numbers and times as people read them."""

from __future__ import annotations

import time
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

EMPTY = "—"
"""In the place of what is not known."""


@cache
def _environment() -> Environment:
    environment = Environment(loader=PackageLoader("agentenv.server.dashboard", "fragments"), autoescape=True, undefined=StrictUndefined)
    environment.filters.update(size=size, span=span, ago=ago, clock=clock, milliseconds=milliseconds, short=short, number=number)
    environment.globals.update(asset=asset)
    return environment


def render(template: str, **values: object) -> str:
    """A template of `fragments/` with these values."""
    return _environment().get_template(template).render(**values)


@cache
def asset(name: str) -> Markup:
    """A file of `assets/`, to stand in a page as it is."""
    return Markup(files("agentenv.server.dashboard").joinpath("assets", name).read_text())


def size(value: float | None) -> str:
    """Bytes with a unit, at most three digits before the point."""
    if value is None:
        return EMPTY
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def span(seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None:
        return EMPTY
    left = int(max(seconds, 0))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def ago(moment: float | None) -> str:
    """How long ago a unix time was."""
    return EMPTY if moment is None else f"{span(time.time() - moment)} ago"


def clock(moment: float | None) -> str:
    """A unix time of today as a time, of another day with its date; in the server's time zone."""
    if moment is None:
        return EMPTY
    there = time.localtime(moment)
    return time.strftime("%H:%M:%S" if there[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M:%S", there)


def milliseconds(seconds: float) -> str:
    """A short time."""
    return f"{seconds * 1000:.1f}"


def short(identifier: str) -> str:
    """The beginning of an id, which mostly is enough to recognise it."""
    return identifier[:8]


def number(value: object) -> str:
    """A number with four digits that count, or as many as it has before the point; anything else as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return EMPTY if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e12 else f"{value:,.4g}"
