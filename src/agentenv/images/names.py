"""Names that stand for an image by content and can come to mean another one: `images/names/<name>.json`, the name quoted as in a URL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from agentenv.images.files import write_durably


def named(directory: Path, name: str) -> str | None:
    """The digest of the image that `name` means in the store's `directory`; None where it means none."""
    facts = description(directory, name)
    return None if facts is None else str(facts["digest"])


def description(directory: Path, name: str) -> dict[str, object] | None:
    """All that was written down about `name`."""
    try:
        return dict(json.loads(_place(directory, name).read_text()))
    except FileNotFoundError:
        return None


def set_name(directory: Path, name: str, digest: str, facts: Mapping[str, object]) -> None:
    """Lets `name` mean the image `sha256:digest` from now on."""
    path = _place(directory, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, {**facts, "digest": digest})


def all_names(directory: Path) -> dict[str, tuple[str, ...]]:
    """Every name of the store, by the canonical reference that it means."""
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted((directory / "names").glob("*.json")):
        name = unquote(path.stem)
        reference = f"sha256:{named(directory, name)}"
        found[reference] = (*found.get(reference, ()), name)
    return found


def forget(directory: Path, name: str) -> None:
    """Removes the name; the image stays."""
    _place(directory, name).unlink(missing_ok=True)


def _place(directory: Path, name: str) -> Path:
    return directory / "names" / f"{quote(name, safe='')}.json"
