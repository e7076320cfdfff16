"""The unmodified E2B SDKs against the real server: they are told where it is by E2B's own variables."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.conftest import RunningServer

CACHE = Path(os.environ.get("AGENTENV_TEST_CACHE", Path.home() / ".cache" / "agentenv-tests"))
"""Where other versions of the SDKs are installed, once."""


def variables(server: RunningServer) -> dict[str, str]:
    return {"E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url, "E2B_API_KEY": server.key}


@pytest.fixture(scope="module")
def e2b(server: RunningServer) -> Iterator[dict[str, str]]:
    """E2B's variables, in this process too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(server).items():
            patch.setenv(name, value)
        yield variables(server)


def python_with(requirement: str) -> Path:
    """A Python of its own with one package in it."""
    home = CACHE / requirement.replace("==", "-")
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", requirement], check=True)
        (home / "complete").touch()
    return python


def node_with(package: str) -> Path:
    """A directory in which Node.js finds one package."""
    home = CACHE / package.replace("@", "-")
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(home), package], check=True)
        (home / "complete").touch()
    return home
