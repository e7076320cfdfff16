"""A server with a dashboard, some runs to look at, and a browser."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.server.conftest import RunningServer, ServerThread
from tests.server.dashboard.browser import MISSING, Browser, browser

from agentenv.monitoring import RunWriter
from agentenv.server.settings import load_settings

ROWS = 50


@pytest.fixture(scope="session")
def runs_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that differ in one setting."""
    directory = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTENV_HOME", str(tmp_path_factory.mktemp("home")))
        for name, rate in (("quick", 0.001), ("slow", 0.0001)):
            with RunWriter.create(directory, run_id=name, max_steps=1000) as writer:
                training = {"algorithm": "PPO", "learning_rate": rate}
                writer.write_manifest({"config": {"environment": {"name": "basic_rl_env"}, "training": training}})
                for row in range(ROWS):
                    writer.log(row * 20, return_mean=10 * (1 - math.exp(-row * rate * 100)), loss=math.exp(-row / 20))
                writer.finish("finished", result={"eval_return": 9.5})
    return directory


@pytest.fixture(scope="session")
def viewed(tmp_path_factory: pytest.TempPathFactory, runs_directory: Path) -> Iterator[RunningServer]:
    """The one server of this process that draws pages (a process has one NiceGUI)."""
    settings = load_settings(environment={}, flags={"port": 0, "runs": str(runs_directory), "history.interval": 1})
    thread = ServerThread(settings, tmp_path_factory.mktemp("viewed") / "home")
    yield thread.start()
    thread.stop()


@pytest.fixture(scope="session")
def window(viewed: RunningServer) -> Iterator[Browser]:
    """A browser that reaches that server and nothing else."""
    if MISSING:
        pytest.skip(MISSING)
    with browser(viewed.url) as opened:
        yield opened


@contextmanager
def signed_in(server: RunningServer, key: str) -> Iterator[httpx.Client]:
    """A client with a session, as a browser has one."""
    with httpx.Client(base_url=f"{server.url}/dashboard", timeout=60) as client:
        answer = client.post("/login", data={"key": key, "next": "/"}, headers={"Origin": server.url})
        assert answer.status_code == 303, answer.text
        yield client
