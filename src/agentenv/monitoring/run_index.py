"""Remembers where runs were started on this machine: one symbolic link for each in `runs-index` of AgentENV's home.

It only helps to find them: a run works without it, and a link whose run was removed or moved is dropped when it is met.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from agentenv.paths import state_home


def index_directory(home: Path | None = None) -> Path:
    """Where the links are."""
    return (home or state_home()) / "runs-index"


def register(run: Path, home: Path | None = None) -> bool:
    """Adds the run in `run`; False where the home cannot be written to."""
    target = run.absolute()
    # Runs in different places may share a name.
    link = index_directory(home) / f"{target.name}.{hashlib.sha256(str(target).encode()).hexdigest()[:8]}"
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(target)
    except OSError:
        return False
    return True


def registered(home: Path | None = None) -> list[Path]:
    """The directories of all runs that are still where they were."""
    try:
        links = sorted(index_directory(home).iterdir())
    except OSError:
        return []
    found = []
    for link in links:
        if not link.is_symlink():
            continue
        if link.is_dir():
            found.append(link.readlink())
        else:
            with contextlib.suppress(OSError):
                link.unlink()
    return found
