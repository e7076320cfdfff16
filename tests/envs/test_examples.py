"""The examples of environments run as their pages say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "environments" / "guess.py"


def test_an_environment_of_ones_own(usable_backend: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].startswith(" 49 is")
    assert done.stdout.endswith("is right\n")
