"""What an image needs besides its layers to be a sandbox's root: the user that it names, its working directory, places for mounts.

Docker only notices at the first command that a user is missing, and then refuses it; here such a user is made, as every file operation
of an agent would fail otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from agentenv.isolation.overlay import Merged, copy_attributes

PASSWD, GROUP = "etc/passwd", "etc/group"
_PLACES = {"dev": 0o755, "proc": 0o555, "run": 0o755, "sys": 0o555, "tmp": 0o1777, "root": 0o700, "etc": 0o755}
_FIRST_ID = 1000
_ROOT = "root:x:0:0:root:/root:/bin/sh\n"


def finish(layers: Merged, user: str, cwd: str, target: Path) -> None:
    """Writes into the empty directory `target` what has to lie over `layers`, in overlayfs' own form. Often that is nothing."""
    for name, mode in _PLACES.items():
        if not layers.find(name):
            _directory(layers, target, name, mode)
    if cwd != "/" and not layers.find(cwd):
        _directory(layers, target, cwd, 0o755)
    _accounts(layers, user or "root", target)


def _directory(layers: Merged, target: Path, name: str, mode: int) -> None:
    """Makes a directory and those above it, which are as they are in the layers where those have them."""
    path, inside = target, PurePosixPath("/")
    for part in PurePosixPath(name.strip("/")).parts:
        if part == "..":
            return
        path, inside = path / part, inside / part
        if path.is_dir():
            continue
        path.mkdir()
        below = layers.find(str(inside))
        if below and below[0].is_dir():
            copy_attributes(below[0], path)
        else:
            path.chmod(mode if inside == PurePosixPath("/", name.strip("/")) else 0o755)


def _accounts(layers: Merged, wanted: str, target: Path) -> None:
    """The account files with the user and group of `wanted` (`name`, `uid`, `name:group`, `uid:gid`) added where they are missing."""
    user, _, group = wanted.partition(":")
    passwd, groups = _text(layers, PASSWD), _text(layers, GROUP)
    new_passwd, new_groups = passwd or _ROOT, groups or "root:x:0:\n"
    ids = {int(line[2]) for line in (*_rows(new_passwd), *_rows(new_groups)) if len(line) > 2 and line[2].isdigit()}
    free = next(number for number in range(_FIRST_ID, 60000) if number not in ids)
    gid = _number_of(new_groups, group) if group else None
    if group and gid is None and not group.isdigit():
        gid = free
        new_groups = f"{_ended(new_groups)}{group}:x:{gid}:\n"
    if not user.isdigit() and _number_of(new_passwd, user) is None:
        if gid is None:
            known = _number_of(new_groups, user)
            gid = int(group) if group.isdigit() else free if known is None else known
            if known is None and not group:
                new_groups = f"{_ended(new_groups)}{user}:x:{gid}:\n"
        home = f"home/{user}"
        new_passwd = f"{_ended(new_passwd)}{user}:x:{free}:{gid}::/{home}:/bin/sh\n"
        if not layers.find(home):
            _directory(layers, target, home, 0o755)
            if os.geteuid() == 0:
                os.chown(target / home, free, gid)
    for name, before, after in ((PASSWD, passwd, new_passwd), (GROUP, groups, new_groups)):
        if before != after:
            _directory(layers, target, "etc", 0o755)
            (target / name).write_text(after)
            (target / name).chmod(0o644)


def _text(layers: Merged, name: str) -> str:
    content = layers.read(name)
    return "" if content is None else content.decode(errors="surrogateescape")


def _rows(text: str) -> Iterator[list[str]]:
    return (line.split(":") for line in text.splitlines())


def _number_of(text: str, name: str) -> int | None:
    return next((int(row[2]) for row in _rows(text) if row[0] == name and len(row) > 2 and row[2].isdigit()), None)


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"
