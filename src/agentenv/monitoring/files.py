"""Small files that are replaced as a whole: a reader sees the old content or the new, never half of it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec


def write_json(path: Path, data: Mapping[str, Any], *, durable: bool = False) -> None:
    """Replaces `path` by `data` as indented JSON; `durable` waits until the disk has it.

    Raises OSError, and TypeError for what JSON cannot hold.
    """
    write_whole(path, msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n", durable=durable)


def write_whole(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replaces `path` by `content`; `durable` waits until the disk has it. Raises OSError."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None where there is no such file or no JSON object in it."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
