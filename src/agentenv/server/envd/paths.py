"""Paths as E2B's clients write them: absolute, relative to the user's home, or with `~`."""

from __future__ import annotations

import posixpath

from agentenv.server.envd.connect import Code, ConnectError
from agentenv.server.envd.users import User


def resolve(path: str, user: User, workdir: str | None = None) -> str:
    """An absolute path. An empty one is `workdir`, or else the home. Raises `ConnectError` for `~somebody` and for a NUL."""
    path = path or workdir or user.home
    if "\0" in path:
        raise ConnectError(Code.INVALID_ARGUMENT, f"the path {path!r} has a NUL in it")
    if path.startswith("/"):
        return path
    if path.startswith("~"):
        if path[1:2] not in ("", "/"):
            raise ConnectError(Code.INVALID_ARGUMENT, f"{path!r}: only `~` and `~/…` are known, the home of the user {user.name!r}")
        path = path[2:]
    return posixpath.normpath(f"{user.home}/{path}")
