"""Lists in pages: what comes after the cursor that the page before gave."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

from agentenv.errors import ConfigError

NEXT_TOKEN = "x-next-token"
Item = TypeVar("Item")
Position = tuple[float, str]
"""Where an item stands: a time, and an id that tells apart what has the same time."""


def page(
    items: Sequence[Item], position: Callable[[Item], Position], *, token: str | None, limit: int, descending: bool
) -> tuple[list[Item], str | None]:
    """The items of one page in order, and the token of the next page if there is one. Raises `ConfigError` for what is no token."""
    ordered = sorted(items, key=position, reverse=descending)
    if token:
        after = _parse(token)
        ordered = [item for item in ordered if (position(item) < after if descending else position(item) > after)]
    found = ordered[:limit]
    return found, _token(position(found[-1])) if len(ordered) > limit else None


def metadata_filter(query: str | None) -> dict[str, str]:
    """What a filter such as `user=abc&app=prod` asks for; keys and values are encoded once more inside of it.

    Raises `ConfigError`.
    """
    if not query:
        return {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=100)
    except ValueError as error:
        raise ConfigError(f"{query!r} is no filter", key="metadata", remedy="Write key=value&key=value, URL-encoded.") from error
    return {unquote(key): unquote(value) for key, value in pairs}


def _token(position: Position) -> str:
    return base64.urlsafe_b64encode(f"{position[0]!r} {position[1]}".encode()).decode()


def _parse(token: str) -> Position:
    try:
        moment, _, identifier = base64.b64decode(token.encode(), b"-_", validate=True).decode().partition(" ")
        return float(moment), identifier
    except (binascii.Error, ValueError) as error:
        raise ConfigError("this is no token of a page", key="nextToken", remedy=f"Pass the {NEXT_TOKEN} of an answer.") from error
