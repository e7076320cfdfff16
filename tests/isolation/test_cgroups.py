"""Real cgroups on this machine: limits bite, readings tell, freezing and killing reach everything, nothing is left."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState
from agentenv.isolation.contract import Resources
from agentenv.isolation.namespace.cgroup_discovery import Hierarchy
from agentenv.isolation.namespace.cgroups import Cgroup, CgroupTree, group_name

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making cgroups at the top of the hierarchies needs root")

MIB = 1 << 20


def _tree_without_v2() -> CgroupTree:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return CgroupTree.discover(mountinfo="\n".join(line for line in mounts if " - cgroup2 " not in line))


@pytest.fixture(params=["all", "v1 only"])
def tree(request: pytest.FixtureRequest) -> CgroupTree:
    found = CgroupTree.discover() if request.param == "all" else _tree_without_v2()
    if not found.hierarchies:
        pytest.skip(f"no usable hierarchy ({request.param}): {' '.join(found.lost)}")
    return found


@pytest.fixture
def group(tree: CgroupTree) -> Iterator[Cgroup]:
    made = tree.create(group_name("pytest", uuid.uuid4().hex))
    yield made
    made.remove()
    assert not any(path.parent.exists() for path in made.procs_files)


def _need(tree: CgroupTree, controller: str) -> None:
    if controller not in tree.controllers:
        pytest.skip(f"no {controller} controller here: {' '.join(tree.lost)}")


def _start(group: Cgroup, program: str) -> subprocess.Popen[bytes]:
    """Runs Python inside the group, entered before the exec as the launcher does."""
    enter = "".join(f"echo 0 > {path}; " for path in group.procs_files)
    command = ["/bin/sh", "-c", enter + 'exec "$@"', "sh", sys.executable, "-S", "-c", program]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _finish(group: Cgroup, program: str) -> int:
    with _start(group, program) as child:
        return child.wait(timeout=60)


def _first_byte(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    return child.stdout.read(1)


def test_memory_hog_is_killed_and_named(tree: CgroupTree, group: Cgroup) -> None:
    _need(tree, "memory")
    group.apply(Resources(memory=32 * MIB))
    assert group.oom_kills() == ()
    hog = "open('/proc/self/comm', 'w').write('hog,pid=1,x'); x = bytearray(256 << 20)"
    assert _finish(group, hog) == -9
    (kill,) = group.oom_kills()
    assert kill.limit == 32 * MIB
    assert 24 * MIB < kill.peak <= 32 * MIB
    assert kill.process in ("hog,pid=1,x", None)
    if os.access("/dev/kmsg", os.R_OK):
        assert kill.process == "hog,pid=1,x"


def test_memory_limit_is_raised_and_lowered_live(tree: CgroupTree, group: Cgroup) -> None:
    _need(tree, "memory")
    group.apply(Resources(memory=64 * MIB))
    group.apply(Resources(memory=256 * MIB))
    assert group.usage().memory_limit == 256 * MIB
    group.apply(Resources(memory=48 * MIB))
    assert group.usage().memory_limit == 48 * MIB
    group.apply(Resources(cpu=1.0))
    assert group.usage().memory_limit == 48 * MIB


def test_page_cache_gives_way_to_a_lower_limit(tree: CgroupTree, group: Cgroup, tmp_path: Path) -> None:
    _need(tree, "memory")
    group.apply(Resources(memory=128 * MIB))
    assert _finish(group, f"open({str(tmp_path / 'file')!r}, 'wb').write(bytes(48 << 20))") == 0
    group.apply(Resources(memory=8 * MIB))
    assert group.usage().memory_limit == 8 * MIB
    assert (group.usage().memory or 0) <= 8 * MIB


def test_a_limit_below_what_is_in_use_is_refused_and_kills_nobody(tree: CgroupTree, group: Cgroup) -> None:
    _need(tree, "memory")
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        pytest.skip("with swap the memory in use can be pushed out")
    group.apply(Resources(memory=128 * MIB))
    with _start(group, "x = b'x' * (64 << 20); print('r', flush=True); input()") as child:
        assert _first_byte(child) == b"r"
        with pytest.raises(InvalidState, match=r"cannot be lowered to 16 MiB: 6\d MiB are in use"):
            group.apply(Resources(memory=16 * MIB))
        assert group.usage().memory_limit == 128 * MIB
        child.communicate(b"\n")
        assert child.returncode == 0
    assert group.oom_kills() == ()


def test_cpu_quota_holds_a_busy_process_back(tree: CgroupTree, group: Cgroup) -> None:
    _need(tree, "cpu")
    group.apply(Resources(cpu=0.02))
    with _start(group, "while True: pass") as child:
        deadline = time.monotonic() + 60
        while not group.usage().throttled_seconds and time.monotonic() < deadline:
            time.sleep(0.01)
        child.kill()
    usage = group.usage()
    assert usage.throttled_seconds
    assert usage.cpu_seconds is None or usage.cpu_seconds > 0


def test_fork_storm_is_refused_and_counted(tree: CgroupTree, group: Cgroup) -> None:
    _need(tree, "pids")
    group.apply(Resources(pids=6))
    assert group.process_limit_hits() == 0
    storm = "import os, signal\nfor _ in range(50):\n    if os.fork() == 0: signal.pause()"
    assert _finish(group, storm) == 1
    assert group.process_limit_hits() >= 1
    assert group.usage().processes == 5


def test_frozen_processes_stand_still_until_thawed(tree: CgroupTree, group: Cgroup) -> None:
    if not tree.can_freeze:
        pytest.skip("no freezer here")
    with _start(group, "import os\nwhile True: os.write(1, b'.')") as child:
        assert _first_byte(child) == b"."
        group.freeze()
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        while child.stdout.read(1 << 20):
            pass
        assert select.select([child.stdout], [], [], 0.05)[0] == []
        group.thaw()
        assert select.select([child.stdout], [], [], 30)[0] == [child.stdout]
        group.remove()
        assert child.wait(timeout=30) == -9


def test_remove_ends_frozen_processes_and_fork_storms(tree: CgroupTree, group: Cgroup) -> None:
    group.apply(Resources(pids=40))
    storm = "import os\nprint('r', flush=True)\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    with _start(group, storm) as child:
        assert _first_byte(child) == b"r"
        if tree.can_freeze:
            group.freeze()
        group.remove()
        assert child.wait(timeout=30) == -9
    group.remove()
    group.kill()
    assert group.name not in tree.names()


def test_pressure_is_a_share_or_unknown(tree: CgroupTree, group: Cgroup) -> None:
    for share in (group.usage().cpu_pressure, group.usage().memory_pressure, group.usage().io_pressure):
        assert share is None or 0 <= share <= 100


def test_the_memory_file_holds_what_usage_says(tree: CgroupTree, group: Cgroup) -> None:
    _need(tree, "memory")
    assert group.memory_files is not None
    assert int(Path(group.memory_files.usage).read_text()) == group.usage().memory
    assert "oom_kill 0\n" in Path(group.memory_files.oom_kills).read_text()


def test_disk_traffic_is_limited_where_the_controller_is(tree: CgroupTree, group: Cgroup) -> None:
    device = next((path for path in Path("/sys/block").iterdir() if path.name.startswith(("vd", "sd", "nvme"))), None)
    if "io" not in tree.controllers or device is None:
        with pytest.raises(CapabilityError, match="disk traffic cannot be limited"):
            replace(group, hierarchies=()).limit_io("8:0", read_bytes=1)
        return
    number = (device / "dev").read_text().strip()
    directory = next(Path(hierarchy.base, group.name) for hierarchy in tree.hierarchies if "io" in hierarchy.controllers)
    with _start(group, "print('r', flush=True); input()") as child:
        assert _first_byte(child) == b"r"
        group.limit_io(number, write_bytes=7 * MIB)
        group.limit_io(number, write_bytes=9 * MIB)
        limits = [directory / name for name in ("io.max", "blkio.throttle.write_bps_device")]
        assert any(f"{9 * MIB}" in path.read_text() for path in limits if path.exists())
        assert str(child.pid) in (directory / "cgroup.procs").read_text().split()
        child.communicate(b"\n")
    with pytest.raises(InfrastructureError, match="refused to limit disk 999:999"):
        group.limit_io("999:999", write_bytes=MIB)
    group.remove()
    assert not directory.exists()


def test_names_are_grouped_by_owner(tree: CgroupTree, group: Cgroup) -> None:
    assert group.name in tree.names()
    assert group.name in tree.by_owner()["pytest"]


def test_a_group_lies_beside_the_machines_others(tree: CgroupTree, group: Cgroup) -> None:
    """Below a group shared by all sandboxes, they would together weigh as much as one process of the machine."""
    assert {path.parent.parent for path in group.procs_files} <= {Path(hierarchy.base) for hierarchy in tree.hierarchies}
    (Path(tree.hierarchies[0].base) / "of-somebody-else").mkdir()
    try:
        assert "of-somebody-else" not in tree.names()
    finally:
        (Path(tree.hierarchies[0].base) / "of-somebody-else").rmdir()


def test_a_taken_name_is_an_error_and_leaves_the_group_alone(tree: CgroupTree, group: Cgroup) -> None:
    with pytest.raises(InfrastructureError, match="cannot be made: File exists"):
        tree.create(group.name)
    assert group.name in tree.names()


def test_a_failure_in_one_hierarchy_undoes_the_others(tree: CgroupTree) -> None:
    broken = replace(tree, hierarchies=(*tree.hierarchies, Hierarchy(1, "/nonexistent", frozenset({"memory"}))))
    name = group_name("pytest", uuid.uuid4().hex)
    with pytest.raises(InfrastructureError, match="/nonexistent"):
        broken.create(name)
    assert name not in tree.names()


def test_a_refused_limit_is_named(tree: CgroupTree, group: Cgroup) -> None:
    group.remove()
    with pytest.raises(InfrastructureError, match=f"refused a limit of cgroup {group.name}"):
        group.apply(Resources(memory=MIB, cpu=1.0))


@pytest.mark.parametrize("name", ["", "a-b-1", "agentenv-", "agentenv-a/b", "agentenv-a b", "agentenv-" + "x" * 300])
def test_only_plain_names_become_directories(tree: CgroupTree, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a sandbox's cgroup"):
        tree.create(name)


def test_without_any_hierarchy_everything_is_quiet_but_freezing() -> None:
    group = CgroupTree((), ()).create("agentenv-a-b")
    group.apply(Resources(memory=MIB, cpu=1, pids=1))
    group.kill()
    group.remove()
    assert (group.procs_files, group.entrances, group.v1_enter_files, group.v2_directory, group.memory_files) == ((), (), (), None, None)
    assert (group.oom_kills(), group.process_limit_hits()) == ((), 0)
    assert group.usage().memory is None
    with pytest.raises(CapabilityError, match="cannot be paused"):
        group.freeze()


def _as_nobody_in(group: str | None) -> subprocess.CompletedProcess[str]:
    """Discovers as an unprivileged user whose process lives in `group`, and there makes, freezes, kills and removes a group."""
    enter = f"open('{group}/cgroup.procs', 'w').write('0')" if group else ""
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
{enter}
from agentenv.isolation.namespace.cgroups import CgroupTree
os.setgid(65534); os.setuid(65534)
tree = CgroupTree.discover()
print(*[h.base for h in tree.hierarchies], sep=',')
print(*tree.lost, sep='|')
if tree.hierarchies:
    made = tree.create('agentenv-nobody-1')
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        for path in made.procs_files: path.write_text('0')
        os.write(writable, b'r')
        while True: pass
    os.read(readable, 1)
    made.remove()
    print(os.waitpid(pid, 0)[1], tree.names())
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)


def test_a_plain_user_is_told_what_is_lost() -> None:
    bases, lost, *_ = _as_nobody_in(None).stdout.splitlines()
    assert bases == ""
    assert "memory cannot be limited" in lost
    assert "frozen and killed process by process" in lost


def test_a_delegated_subtree_is_used_by_a_plain_user() -> None:
    v2 = next((hierarchy for hierarchy in CgroupTree.discover().hierarchies if hierarchy.version == 2), None)
    if v2 is None:
        pytest.skip("no cgroup v2 here")
    delegated = Path(v2.base, f"delegated-{uuid.uuid4().hex}")
    inner = delegated / "own"
    inner.mkdir(parents=True)
    try:
        for path in (
            delegated,
            inner,
            *(where / name for where in (delegated, inner) for name in ("cgroup.procs", "cgroup.subtree_control")),
        ):
            os.chown(path, 65534, 65534)
        bases, _, ended = _as_nobody_in(str(inner)).stdout.splitlines()
        assert bases == str(delegated)
        assert ended == "9 []"
    finally:
        inner.rmdir()
        delegated.rmdir()
