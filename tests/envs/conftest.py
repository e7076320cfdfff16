"""Sandboxes for the tests of environments: a stand-in that is a plain process, and, where this machine can run them, the real ones."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.envs.local_sandbox import LocalSandbox

from agentenv.envs.handle import SandboxHandle
from agentenv.isolation import probe_all

Factory = Callable[[], SandboxHandle]


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the tests' own sandboxes leave behind lies in a directory of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTENV_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def stand_in() -> Iterator[Callable[[], LocalSandbox]]:
    """Makes stand-ins for sandboxes; all end with the test. Their sockets lie in them, so the way there must be short (unix(7))."""
    made: list[LocalSandbox] = []
    with tempfile.TemporaryDirectory(prefix="envs-") as directory:

        def make() -> LocalSandbox:
            made.append(LocalSandbox(Path(directory)))
            return made[-1]

        yield make
        for sandbox in made:
            sandbox.kill()


@pytest.fixture(scope="session")
def usable_backend() -> str:
    """The name of a backend that works here; without one the tests that need it are skipped."""
    probes = probe_all()
    # Namespaces where they work, which is nearly everywhere: what a machine has besides must not change what these tests try.
    for probe in sorted(probes, key=lambda probe: probe.backend != "namespace"):
        if probe.usable:
            return probe.backend
    pytest.skip(f"no backend is usable here: {'; '.join(f'{probe.backend}: {probe.reason}' for probe in probes)}")


@pytest.fixture(params=["process", "sandbox"])
def place(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments that put an environment into a stand-in, or into a real sandbox."""
    if request.param == "process":
        return {"factory": request.getfixturevalue("stand_in")}
    return {"isolation": request.getfixturevalue("usable_backend")}


BASIC = {"directory": "/workspace"}
"""Options of basic_rl_env that name its directory, so that the stand-in can move it."""
