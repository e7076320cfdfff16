"""What the launcher is asked for and the agent is told, from a machine's specification."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentenv.isolation.contract import MachineSpec, Network, Resources, RootFilesystem, Tree
from agentenv.isolation.namespace import plan
from agentenv.isolation.namespace.cgroup_discovery import Hierarchy
from agentenv.isolation.namespace.cgroups import Cgroup

GIB = 1 << 30
TREES = (Tree("/", "root", (Path("/top"), Path("/base"))), Tree("/usr", "usr", (Path("/usr"),)))
IMAGE = RootFilesystem(TREES, "test", {"A": "image", "B": "image"}, "user", "/work")
NO_GROUP = Cgroup("none", ())


def _spec(**changes: object) -> MachineSpec:
    return MachineSpec(id="m", directory=Path("/m"), root=IMAGE, hostname="box", **changes)  # type: ignore[arg-type]


def test_trees_keep_their_order_and_layers() -> None:
    rows = plan.records(_spec(), NO_GROUP)
    trees = [row for row in rows if row.split("=")[0] in ("tree", "upper", "work", "lower")]
    assert trees == [
        *("tree=/", "upper=/m/upper/root", "work=/m/work/root", "lower=/top", "lower=/base"),
        *("tree=/usr", "upper=/m/upper/usr", "work=/m/work/usr", "lower=/usr"),
    ]


def test_the_sandboxes_environment_goes_over_the_images() -> None:
    words = plan.agent_arguments(_spec(env={"B": "own"}), accounts_memory=False)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--env"] == ["A=image", "B=own"]
    assert words[words.index("--user") + 1] == "user"
    assert words[words.index("--cwd") + 1] == "/work"


@pytest.mark.parametrize(
    ("memory", "tmp", "run"),
    [(None, 0, 64 << 20), (GIB, GIB // 2, 64 << 20), (16 << 20, 8 << 20, 8 << 20), (1, 4 << 20, 4 << 20)],
)
def test_temporary_file_systems_follow_the_memory(memory: int | None, tmp: int, run: int) -> None:
    rows = plan.records(_spec(resources=Resources(memory=memory)), NO_GROUP)
    assert {f"tmp={tmp}", f"shm={tmp}", f"run={run}"} <= set(rows)
    assert ("show_memory=1" in rows) == (memory is not None)


def test_cores_are_whole_and_no_more_than_there_are() -> None:
    here = len(os.sched_getaffinity(0))
    assert [plan.cores(cpu) for cpu in (None, 0.1, 1, 1.2, 10_000)] == [0, 1, 1, min(2, here), here]


def test_cgroups_and_network_are_named() -> None:
    group = Cgroup("g", (Hierarchy(2, "/two", frozenset()), Hierarchy(1, "/memory", frozenset({"memory"}))))
    rows = plan.records(_spec(network=Network(enabled=True, netns=Path("/net"))), group)
    memory = "/memory/g"
    assert {
        "into=/two/g",
        f"enter={memory}/tasks",
        f"memory_file={memory}/memory.usage_in_bytes",
        f"netns=/proc/{os.getpid()}/root/net",
    } <= set(rows)
    assert "arg=--memory-usage" in rows
