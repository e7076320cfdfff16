"""The command line in a directory of the test's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner

from agentenv.cli.main import app


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an AGENTENV_HOME beside it."""
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("_AGENTENV_COMPLETE", raising=False)
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def agentenv() -> Iterator[Callable[..., CompletedProcess[str]]]:
    """Runs `agentenv` with the given arguments, in this process; its logging is undone afterwards."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> CompletedProcess[str]:
        result = CliRunner().invoke(app, arguments, env=env, prog_name="agentenv", catch_exceptions=False)
        return CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)

    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield run
    root.handlers[:], root.level = handlers, level
