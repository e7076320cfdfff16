"""The JavaScript SDK of E2B as it is, against the real server with real sandboxes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.server.e2b.conftest import node_with

PACKAGE = "e2b@2.51.0"
TOUR = Path(__file__).with_name("tour.mjs")
STOPS = re.findall(r"^  async (\w+)\(sandbox\)", TOUR.read_text(), re.MULTILINE)

needs_node = pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="there is no Node.js here (Debian: nodejs npm)")


@needs_node
@pytest.mark.soak
def test_the_sdk_goes_the_whole_tour(e2b: dict[str, str]) -> None:
    home = node_with(PACKAGE)
    shutil.copy(TOUR, home)  # packages are looked for beside the program
    done = subprocess.run(
        ["node", home / TOUR.name], env={**e2b, "PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.stdout.split(), done.returncode) == (STOPS, 0), done.stderr
    assert len(STOPS) == 6
