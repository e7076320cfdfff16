"""Whose envd is kept, and for how long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.sandbox.local_host import LocalHost
from tests.server.proxy.conftest import OneSandbox

from agentenv.sandbox import AsyncSandbox
from agentenv.server.proxy.envds import Envds


async def test_an_envd_lives_as_long_as_its_machine(tmp_path: Path) -> None:
    handles = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        handles.append(AsyncSandbox(LocalHost(tmp_path / str(number)), None))  # type: ignore[arg-type]
    first, again, other = handles
    view, envds = OneSandbox(first).view, Envds()
    envd = envds.of(first, view)
    assert envds.of(first, view) is envd
    assert envds.of(again, view) is not envd
    await again.kill()
    envds.of(other, replace(view, id="other"))
    assert len(envds) == 1
    await first.kill()
    await other.kill()
