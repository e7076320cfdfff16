"""Owners: who lives, who is dead, and what the living have running."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from agentenv.errors import InfrastructureError
from agentenv.isolation.namespace.makers import process_namespace, start_ticks
from agentenv.node.home import Home
from agentenv.node.owner import FACTS, Owner, OwnerFacts, dead_owners, live_records

CHILD = """
import sys, pathlib, os
from agentenv.node.home import Home
from agentenv.node.owner import Owner
owner = Owner.register(Home.open(pathlib.Path(sys.argv[1])))
owner.journal.record("sb1", state="running", generation=1, image="host", backend="b", created=1.0, expires=None, metadata={},
    directory="/x")
owner.journal.record("sb2", state="creating")
if sys.argv[2] == "fork" and os.fork() == 0:
    print(owner.id, os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
if sys.argv[2] != "fork":
    print(owner.id, os.getpid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(home: Path) -> Home:
    return Home.open(home)


def child(place: Home, how: str = "plain") -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(place.path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()[0]


def test_the_living_are_listed_and_not_cleaned_up(place: Home) -> None:
    process, owner = child(place)
    assert dead_owners(place) == []
    assert [(record.id, record.owner, record.owner_pid) for record in live_records(place)] == [("sb1", owner, process.pid)]
    process.communicate()


def test_a_killed_process_is_dead_and_its_sandboxes_are_not_listed(place: Home) -> None:
    process, owner = child(place)
    process.kill()
    process.wait()
    assert [path.name for path in dead_owners(place)] == [owner]
    assert live_records(place) == []


def test_a_fork_that_outlives_its_parent_does_not_keep_it_alive(place: Home) -> None:
    process, owner = child(place, "fork")
    process.kill()
    process.wait()
    assert [path.name for path in dead_owners(place)] == [owner]
    assert process.stdin is not None
    process.stdin.close()


def test_a_number_used_again_is_another_process(place: Home) -> None:
    stranger = place.owners / "ostranger"
    stranger.mkdir()
    facts = OwnerFacts(os.getpid(), 1, process_namespace(), "x", 0.0)
    (stranger / FACTS).write_bytes(msgspec.json.encode(facts))
    assert dead_owners(place) == [stranger]


def test_closing_leaves_nothing(place: Home) -> None:
    owner = Owner.register(place)
    (owner.staging() / "file").touch()
    owner.close()
    owner.close()
    assert list(place.owners.iterdir()) == []


def test_start_ticks_of_nobody_is_none() -> None:
    assert start_ticks(2**22 + 1) is None
    assert start_ticks(os.getpid()) == start_ticks(os.getpid())


def test_a_home_that_cannot_be_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="AGENTENV_HOME"):
        Home.open(tmp_path / "file" / "home")
