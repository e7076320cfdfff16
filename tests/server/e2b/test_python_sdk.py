"""The Python SDKs of E2B as they are, against the real server with real sandboxes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2b import Sandbox
from tests.server.e2b import tour, tour_async
from tests.server.e2b.conftest import python_with

OLDEST = "e2b==2.50.0"
QUICKSTART = """
from e2b import Sandbox
with Sandbox.create() as sandbox:
    print(sandbox.commands.run('echo "Hello from E2B!"').stdout, end="")
    sandbox.files.write("hello.txt", "Hello")
    print([file.name for file in sandbox.files.list(".")], sandbox.files.read("hello.txt"))
"""


@pytest.fixture(scope="module")
def sandbox(e2b: dict[str, str]) -> Iterator[Sandbox]:
    with tour.begin() as made:
        yield made


@pytest.mark.parametrize("stop", tour.TOUR, ids=lambda stop: stop.__name__)
def test_the_synchronous_face(sandbox: Sandbox, stop: Callable[[Sandbox], None]) -> None:
    stop(sandbox)
    assert sandbox.is_running()


@pytest.mark.parametrize("name", [stop.__name__ for stop in tour_async.TOUR])
def test_the_asynchronous_face(e2b: dict[str, str], name: str) -> None:
    assert asyncio.run(tour_async.go(name)) is None


def test_a_quickstart_needs_nothing_but_the_variables(e2b: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", QUICKSTART], env=e2b, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("Hello from E2B!\n['hello.txt'] Hello\n", 0), done.stderr


@pytest.mark.soak
def test_the_oldest_sdk_goes_the_whole_tour(e2b: dict[str, str]) -> None:
    done = subprocess.run([python_with(OLDEST), Path(tour.__file__)], env=e2b, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout.split(), done.returncode) == ([stop.__name__ for stop in tour.TOUR], 0), done.stderr
