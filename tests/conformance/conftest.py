"""Backends to run the suite on, each opened once for all checks, in a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.machines import shared_cache

from agentenv.conformance import Subject, open_subject
from agentenv.errors import BackendUnavailable, NotFound
from agentenv.isolation.conformance import Check, Outcome, run_check


class Bench:
    """One backend, with the loop that drives it."""

    def __init__(self, runner: asyncio.Runner, subject: Subject) -> None:
        self.subject = subject
        self._runner = runner

    def run(self, check: Check[Subject]) -> Outcome:
        """What comes of one check. Virtual machines without hardware support are slow, so a check may take four times as long."""
        return self._runner.run(run_check(check, self.subject, patience=4.0))


@contextmanager
def _entered(runner: asyncio.Runner, manager: AbstractAsyncContextManager[Subject]) -> Iterator[Subject]:
    subject = runner.run(manager.__aenter__())
    try:
        yield subject
    finally:
        runner.run(manager.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def bench(shared_home: Path) -> Iterator[Callable[[str], Bench]]:
    """Opens a backend by name, on its first use; skips with the reason where it cannot be used."""
    opened: dict[str, Bench] = {}
    refused: dict[str, str] = {}
    with ExitStack() as stack:

        def get(name: str) -> Bench:
            if name not in opened and name not in refused:
                runner = stack.enter_context(asyncio.Runner())
                home = shared_cache() if name in ("qemu", "firecracker") else shared_home
                try:
                    opened[name] = Bench(runner, stack.enter_context(_entered(runner, open_subject(name, home=home, cycles=10))))
                except (BackendUnavailable, NotFound) as error:
                    refused[name] = error.message
            if name in refused:
                pytest.skip(f"{name} cannot be used here: {refused[name]}")
            return opened[name]

        yield get


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One AGENTENV_HOME for all tests of this room, because the first sandbox in a home makes the layers of the image."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def home(shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That home, also for what looks it up by itself."""
    monkeypatch.setenv("AGENTENV_HOME", str(shared_home))
    return shared_home
