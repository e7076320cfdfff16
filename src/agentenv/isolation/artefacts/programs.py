"""Installed programs and their versions."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from agentenv.errors import BackendUnavailable

ANSWERS_WITHIN = 10.0
"""Seconds for a program to tell its version."""


def version_text(program: Path, *arguments: str) -> str:
    """What the program prints when it is asked for its version. Raises `BackendUnavailable` when it cannot be run."""
    try:
        done = subprocess.run(
            [program, *(arguments or ("--version",))], capture_output=True, text=True, timeout=ANSWERS_WITHIN, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailable(f"{program} cannot be run: {getattr(error, 'strerror', None) or error}.") from error
    if done.returncode != 0:
        raise BackendUnavailable(f"{program} cannot be run: it ended with status {done.returncode} when asked for its version.")
    return done.stdout + done.stderr


def dotted_version(text: str) -> tuple[int, ...] | None:
    """The first version of the form 1.2.3 in a text."""
    found = re.search(r"\b[vV]?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else None


def at_least(program: Path, text: str, oldest: str) -> str:
    """The version that `text` tells. Raises `BackendUnavailable` when it is older than `oldest`, or none."""
    version = dotted_version(text)
    if version is None:
        raise BackendUnavailable(f"{program} tells no version.")
    shown = ".".join(map(str, version))
    if version < tuple(map(int, oldest.split("."))):
        raise BackendUnavailable(f"{program} is version {shown}; {oldest} or newer is needed.")
    return shown


def on_path(name: str) -> list[tuple[Path, str]]:
    """The program `name`, if the machine has it."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")
    return [(Path(found), "installed on this machine")] if found else []
