"""The namespace backend as a user without any privilege, and what it says it has lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.isolation.unprivileged import place, python_for_nobody, run_as_nobody

from agentenv.errors import BackendUnavailable
from agentenv.isolation.namespace import probing
from agentenv.isolation.namespace.answers import Facts
from agentenv.isolation.namespace.cgroup_discovery import Hierarchy
from agentenv.isolation.namespace.cgroups import CgroupTree

__all__ = ["place"]  # a fixture

SCRIPT = """
import asyncio, dataclasses, json, sys
from pathlib import Path
from agentenv.isolation.contract import Resources
from agentenv.isolation.namespace.backend import NamespaceBackend
from tests.isolation.sandboxes import MIB, Yard, shell, skeleton

async def main(directory: Path) -> dict[str, object]:
    owner = directory / "owner"
    owner.mkdir()
    backend = await NamespaceBackend.open(owner)
    probe = backend.probe()
    yard = Yard(backend, owner, skeleton(directory))
    machine = await backend.start(yard.spec(resources=Resources(cpu=1, memory=64 * MIB)))
    seen = {
        "identity": (await shell(machine, "id -u; id -g")).split(),
        "limits": (await shell(machine, "nproc; grep MemTotal /proc/meminfo | tr -dc 0-9")).split(),
        "pinned": await shell(machine, "taskset -p 3 $$"),
        "written": await shell(machine, "echo x > /usr/x && cat /usr/x; rm /etc/group && ls /etc/group; rm /usr/bin/env"),
        "mounts": await shell(machine, "cat /proc/self/mountinfo"),
        "devices": await shell(machine, "head -c 3 /dev/zero | wc -c; echo x > /dev/null; cat /proc/kallsyms | wc -c"),
        "capabilities": await shell(machine, "grep CapBnd /proc/self/status"),
    }
    await shell(machine, "sleep 100 >/dev/null 2>&1 &")
    usage = await machine.usage()
    seen["usage"] = [usage.memory, usage.cpu_seconds, usage.processes]
    await machine.pause()
    await machine.resume()
    await machine.resize(Resources(cpu=2))
    seen["after"] = (await shell(machine, "nproc")).strip()
    seen["ended"] = (await machine.kill()).reason
    seen["left"] = yard.leftovers()
    await backend.close()
    return {"probe": dataclasses.asdict(probe), **seen}

print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
"""


@pytest.fixture(scope="module")
def seen(place: Path) -> dict[str, object]:
    python = python_for_nobody(place)
    if python is None:
        pytest.skip("an unprivileged user cannot read this checkout or an interpreter")
    done = run_as_nobody(python, ["-c", SCRIPT, str(place)], place)
    if "BackendUnavailable" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    answers: dict[str, object] = json.loads(done.stdout)
    return answers


def lacks_proc(seen: dict[str, object]) -> bool:
    """Whether the sandboxes had to do without a procfs of their own; tests/isolation/test_covered_proc.py looks at those."""
    probe = seen["probe"]
    assert isinstance(probe, dict)
    return any(sentence.startswith("/proc:") for sentence in probe["capabilities"]["lost"])


@pytest.fixture
def seen_with_proc(seen: dict[str, object]) -> dict[str, object]:
    if lacks_proc(seen):
        pytest.skip("this machine's /proc is covered in part, so that an unprivileged user cannot mount another")
    return seen


def test_root_inside_with_the_same_few_capabilities(seen_with_proc: dict[str, object]) -> None:
    seen = seen_with_proc
    assert seen["identity"] == ["0", "0"]
    assert str(seen["capabilities"]).split()[-1] == "00000000000004fb"


def test_limits_are_shown_and_cores_pinned(seen: dict[str, object]) -> None:
    assert seen["limits"] == ["1", str(64 * 1024)]
    assert seen["after"] == str(min(2, len(os.sched_getaffinity(0))))
    assert "Operation not permitted" in str(seen["pinned"])


def test_the_overlay_takes_writes_but_not_to_what_belongs_to_others(seen: dict[str, object]) -> None:
    new, removed, foreign = str(seen["written"]).splitlines()
    assert new == "x"
    assert "No such file" in removed
    assert "Permission denied" in foreign


def test_no_path_of_the_host_shows_here_either(seen_with_proc: dict[str, object], place: Path) -> None:
    seen = seen_with_proc
    assert " - overlay " in str(seen["mounts"])
    assert place.name not in str(seen["mounts"])
    assert str(seen["devices"]).split() == ["3", "0"]


def test_the_agent_tells_the_usage_where_no_cgroup_does(seen_with_proc: dict[str, object]) -> None:
    seen = seen_with_proc
    usage = seen["usage"]
    assert isinstance(usage, list)
    memory, seconds, processes = usage
    assert memory is None
    assert seconds >= 0
    assert processes >= 2


def test_it_ends_and_leaves_nothing(seen: dict[str, object]) -> None:
    assert seen["ended"] == "it was killed"
    assert seen["left"] == {"processes": [], "cgroups": []}


def test_the_probe_says_what_is_lost(seen: dict[str, object]) -> None:
    probe = seen["probe"]
    assert isinstance(probe, dict)
    assert (probe["usable"], probe["capabilities"]["rootless"], probe["capabilities"]["network"]) == (True, True, False)
    assert {sentence.split(":")[0] for sentence in probe["capabilities"]["lost"]} >= {"network", "memory", "cpu", "files"}


def test_processes_show_where_nothing_of_proc_is_covered(seen: dict[str, object]) -> None:
    covered = any("/proc/" in line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    assert lacks_proc(seen) == covered


def test_as_root_nothing_need_be_lost() -> None:
    every = Hierarchy(2, "/two", frozenset({"memory", "cpu", "pids", "io"}))
    found = probing.capabilities(Facts(user_namespace=False, many_ids=False, landlock=6), CgroupTree((every,), ()))
    assert found.lost == ()
    assert (found.memory_limit, found.process_limit, found.users, found.network) == (True, True, True, True)


@pytest.mark.parametrize(
    ("content", "found"),
    [("root:1:2\nME:100000:65536\nME:7:8\n", "100000:65536"), ("root:1:2\n", None), ("ME:words:65536\n", None), ("", None), ("ME\n", None)],
)
def test_subordinate_ids_are_found(tmp_path: Path, content: str, found: str | None) -> None:
    file = tmp_path / "subuid"
    file.write_text(content.replace("ME", str(os.geteuid()) if os.geteuid() else "0"))
    assert probing.subordinate_ids(file) == found or os.geteuid() == 0
    assert probing.subordinate_ids(tmp_path / "missing") is None


def test_a_probe_of_a_place_that_cannot_hold_an_overlay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        probing, "_try_start", lambda *_: [{"event": "ready"}, {"event": "failed", "what": "mounting the overlay of /", "errno": "22"}]
    )
    probe = probing.probe(tmp_path)
    assert (probe.usable, probe.reason) == (False, "mounting the overlay of / failed: Invalid argument.")
    assert probe.remedy is not None
    assert "AGENTENV_HOME" in probe.remedy


def test_a_probe_without_the_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> list[str]:
        raise BackendUnavailable("the program is missing.", remedy="Build it.")

    monkeypatch.setattr(probing, "launcher_command", missing)
    probe = probing.probe(tmp_path)
    assert (probe.usable, probe.reason, probe.remedy) == (False, "the program is missing.", "Build it.")
