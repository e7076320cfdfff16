"""What users write: the same classes as on this machine, and one more word."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from tests.server.conftest import RunningServer

from agentenv.envs import SandboxVectorEnv
from agentenv.errors import ConfigError, Unauthenticated
from agentenv.sandbox import AsyncSandbox, Sandbox


async def test_the_asynchronous_handle(server: RunningServer) -> None:
    where = {"server": server.url, "api_key": server.key}
    async with await AsyncSandbox.create(**where, metadata={"task": "t1"}) as sandbox:
        assert (await sandbox.commands.run("echo $((6 * 7))")).stdout == "42\n"
        info = await sandbox.get_info()
        assert (info.id, info.state, info.metadata) == (sandbox.id, "running", {"task": "t1"})
        same = await AsyncSandbox.connect(sandbox.id, **where)
        assert (await same.commands.run("true")).exit_code == 0
        assert sandbox.id in [one.id for one in await AsyncSandbox.list(**where)]
    assert sandbox.id not in [one.id for one in await AsyncSandbox.list(**where)]


def test_the_synchronous_handle_ends_with_its_process(server: RunningServer) -> None:
    program = "from agentenv import Sandbox; box = Sandbox.create(); print(box.id, box.commands.run('hostname').exit_code)"
    environment = {**os.environ, "AGENTENV_SERVER": server.url, "AGENTENV_API_KEY": server.key}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60)
    identifier, exit_code = done.stdout.split()
    assert exit_code == "0"
    assert not server.fleet.known(identifier)


def test_environments_are_stepped_over_the_network(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_API_KEY", server.key)
    here, there = (SandboxVectorEnv("gymnasium:CartPole-v1", 2, server=address) for address in (None, server.url))
    try:
        first, _ = here.reset(seed=1)
        second, _ = there.reset(seed=1)
        np.testing.assert_array_equal(first, second)
        for _ in range(20):
            for left, right in zip(here.step(np.array([0, 1]))[:4], there.step(np.array([0, 1]))[:4], strict=True):
                np.testing.assert_array_equal(left, right)
        assert server.fleet.count()["running"] >= 2
    finally:
        here.close()
        there.close()


def test_what_is_missing_is_said_in_one_sentence(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTENV_API_KEY", raising=False)
    with pytest.raises(Unauthenticated, match="AGENTENV_API_KEY"):
        Sandbox.create(server=server.url)
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        Sandbox.create(server="localhost", api_key=server.key)
