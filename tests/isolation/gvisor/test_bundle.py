"""What runsc is told of a machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentenv.isolation.contract import MachineSpec, Network, Resources, RootFilesystem, Tree
from agentenv.isolation.gvisor import bundle
from agentenv.isolation.gvisor.bundle import Bundle


def spec(directory: Path, **wishes: object) -> MachineSpec:
    root = RootFilesystem(
        (Tree("/", "@", (Path("/a"),)), Tree("/usr", "@usr", (Path("/usr"),))), "test", env={"A": "1"}, user="me", cwd="/w"
    )
    return MachineSpec("m1", directory, root, "box", env={"A": "2", "B": "3"}, **wishes)  # type: ignore[arg-type]


def written(directory: Path, **wishes: object) -> dict[str, object]:
    made = bundle.write(spec(directory, **wishes))
    told: dict[str, object] = json.loads((made.directory / "config.json").read_text())
    return told


def test_the_agent_is_told_who_and_where_it_is(tmp_path: Path) -> None:
    words = bundle.agent_arguments(spec(tmp_path, resources=Resources(memory=5 << 20, cpu=1.0)))
    assert words[:7] == [bundle.AGENT, "--stream", "0", "--user", "me", "--cwd", "/w"]
    assert words[7:] == ["--env", "A=2", "--env", "B=3", "--memory-limit", str(5 << 20), "--cpus", "1"]


def test_each_tree_has_a_place_and_is_shown_at_its_target(tmp_path: Path) -> None:
    config = written(tmp_path)
    made = Bundle(tmp_path)
    assert config["root"] == {"path": str(made.root)}
    mounts = {mount["destination"]: mount for mount in config["mounts"]}  # type: ignore[attr-defined]
    assert mounts["/usr"]["source"] == str(made.directory / "trees/@usr")
    assert mounts[bundle.AGENT]["options"] == ["bind", "ro"]
    for place in ("bundle/root", "bundle/trees/@usr", "upper/@", "upper/@usr", "work/@", "work/@usr", "runsc"):
        assert (tmp_path / place).is_dir()


def test_memory_is_told_by_a_meminfo_of_its_own(tmp_path: Path) -> None:
    config = written(tmp_path, resources=Resources(memory=300 << 20))
    assert "MemTotal: 307200 kB\n" in Bundle(tmp_path).meminfo.read_text()
    mounts = {mount["destination"]: mount["options"] for mount in config["mounts"]}  # type: ignore[attr-defined]
    assert mounts["/tmp"] == ["mode=1777", f"size={150 << 20}"]
    assert mounts["/run"] == ["mode=0755", f"size={64 << 20}"]


@pytest.mark.parametrize("enabled", [False, True])
def test_only_the_agent_of_a_networked_sandbox_may_make_interfaces(tmp_path: Path, enabled: bool) -> None:
    config = written(tmp_path, network=Network(enabled))
    assert {"type": "network"} in config["linux"]["namespaces"]  # type: ignore[index]
    process: dict[str, Any] = config["process"]  # type: ignore[assignment]
    assert ("CAP_NET_ADMIN" in process["capabilities"]["effective"]) is enabled
    assert "CAP_NET_ADMIN" not in process["capabilities"]["bounding"]
    assert ("--uplink" in process["args"]) is enabled


def test_a_limited_sandbox_counts_so_many_processors(tmp_path: Path) -> None:
    assert len(bundle.cores(spec(tmp_path, resources=Resources(cpu=0.5)))) == 1
    assert bundle.cores(spec(tmp_path)) == sorted(os.sched_getaffinity(0))
