"""Near matches: what was probably meant by a name that nothing has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def near(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` most likely stands for (upper and lower case are alike), or None."""
    lowered = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None
