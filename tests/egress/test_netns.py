"""Work in another network namespace leaves the caller's thread where it was."""

from __future__ import annotations

import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.network_lab import needs_root

from agentenv.egress import nftables
from agentenv.egress.netns import inside

pytestmark = needs_root


@pytest.fixture
def netns() -> Iterator[Path]:
    name = f"aevtest-{uuid.uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield Path("/run/netns", name)
    subprocess.run(["ip", "netns", "del", name], check=True)


def test_a_thread_enters_and_the_caller_stays(netns: Path) -> None:
    own = Path("/proc/thread-self/ns/net").readlink()
    assert inside(netns, lambda: Path("/proc/thread-self/ns/net").readlink()) != own
    assert Path("/proc/thread-self/ns/net").readlink() == own


def test_a_socket_belongs_to_where_it_was_made(netns: Path) -> None:
    subprocess.run(["ip", "-n", netns.name, "addr", "add", "192.0.2.77/32", "dev", "lo"], check=True)
    with inside(netns, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as there:
        there.bind(("192.0.2.77", 0))
        assert there.getsockname()[0] == "192.0.2.77"


def test_failures_are_raised_to_the_caller(netns: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        inside(netns, lambda: 1 // 0)
    with pytest.raises(FileNotFoundError, match="absent"):
        inside(netns.with_name("aevtest-absent"), lambda: None)
    with pytest.raises(OSError, match="Invalid argument"):
        inside(Path("/proc/self/ns/mnt"), lambda: None)


def test_rules_are_put_in_force_there_alone_and_all_or_nothing(netns: Path) -> None:
    inside(netns, lambda: nftables.apply("table inet first { }"))
    with pytest.raises(nftables.RulesRefused, match="syntax error"):
        inside(netns, lambda: nftables.apply("table inet second { }\nnonsense here\n"))
    with pytest.raises(nftables.RulesRefused, match="No such file"):
        inside(netns, lambda: nftables.apply("add table inet second\nadd rule inet second absent accept\n"))
    inside(netns, lambda: nftables.apply("table inet second { }", check_only=True))
    assert '"name": "first"' in inside(netns, lambda: nftables.ask("list tables"))
    assert "second" not in inside(netns, lambda: nftables.ask("list tables"))
    assert "first" not in nftables.ask("list tables")
