"""Network namespaces that are made after the launcher was started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from agentenv.node import NetworkRequest, Node, SandboxRequest

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect a sandbox to the network"),
    pytest.mark.skipif(not shutil.which("nft") or not shutil.which("ip"), reason="needs ip and nft"),
]


def network_of(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


async def test_one_after_the_other_each_has_a_network_of_its_own(tmp_path: Path) -> None:
    request = SandboxRequest(network=NetworkRequest(enabled=True))
    namespaces = set()
    async with await Node.open(tmp_path / "home") as node:
        # The first start also starts the launcher, with whatever namespaces there were by then.
        for _ in range(8):
            sandbox = await node.create(request)
            record = next(record for record in node.list() if record.id == sandbox.id)
            assert record.init is not None
            namespaces.add(network_of(record.init[0]))
    assert len(namespaces) == 8
    assert network_of(os.getpid()) not in namespaces
