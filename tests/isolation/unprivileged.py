"""Programs that tests run as a user without any privilege."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534
COVER = 'mount -t tmpfs covered /proc/irq && exec setpriv --reuid 65534 --regid 65534 --clear-groups -- "$@"'
"""What containers do to their /proc: a mount over a part of it, which whoever enters a user namespace afterwards cannot take away."""


def run_as_nobody(python: str, arguments: list[str], directory: Path, *, covered: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs `python` so; with `covered` on a machine whose /proc is covered in part, which only root can make (see `COVER`)."""
    paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths), "HOME": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    other = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 and not covered else {}
    words = [*(("unshare", "--mount", "sh", "-c", COVER, "sh") if covered else ()), python, *arguments]
    return subprocess.run(words, capture_output=True, text=True, env=environment, cwd="/", timeout=100, **other)  # type: ignore[call-overload,no-any-return]


def python_for_nobody(directory: Path) -> str | None:
    """An interpreter that such a user may run: this one may lie in somebody's home."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        try:
            if run_as_nobody(python, ["-c", "import agentenv"], directory).returncode == 0:
                return python
        except OSError:
            continue
    return None


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that belongs to the user whom the sandboxes run as; pytest's own are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="agentenv-nobody-"))
    if os.geteuid() == 0:
        os.chown(directory, NOBODY, NOBODY)
    yield directory
    shutil.rmtree(directory)
