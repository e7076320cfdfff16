"""The text files of cgroups: formats of both versions, and waiting for the kernel's notification."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import InvalidState
from agentenv.isolation.namespace import cgroup_files as files
from agentenv.isolation.namespace import cgroup_v1, cgroup_v2


def _fill(directory: Path, **texts: str) -> str:
    for name, text in texts.items():
        (directory / name.replace("__", ".")).write_text(text)
    return str(directory)


@given(st.dictionaries(st.from_regex(r"[a-z_.]{1,20}", fullmatch=True), st.integers(0, 2**64)))
def test_counters_round_trip(counters: dict[str, int]) -> None:
    assert files.parse_counters("".join(f"{name} {value}\n" for name, value in counters.items())) == counters


@given(st.text())
def test_no_text_breaks_the_counters(text: str) -> None:
    assert all(value >= 0 for value in files.parse_counters(text).values())


def test_pressure_is_the_short_average_of_some() -> None:
    text = "some avg10=5.25 avg60=2.50 avg300=0.66 total=5858160\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    assert files.parse_pressure(text) == 5.25
    assert files.parse_pressure(None) is None


def test_absent_files_read_as_none_and_refuse_optional_writes(tmp_path: Path) -> None:
    path = str(tmp_path / "memory.peak")
    assert files.read(path) is None
    assert files.read_number(path) is None
    assert files.read_processes(path) == ()
    assert not files.write_if_present(path, "1")
    with pytest.raises(FileNotFoundError):
        files.write(path, "1")


def test_max_is_no_number_and_foreign_processes_are_left_out(tmp_path: Path) -> None:
    directory = _fill(tmp_path, memory__max="max\n", cgroup__procs="0\n12\n7\n")
    assert files.read_number(f"{directory}/memory.max") is None
    assert files.read_processes(f"{directory}/cgroup.procs") == (12, 7)


def test_waiting_ends_with_the_deadline_or_the_group(tmp_path: Path) -> None:
    directory = _fill(tmp_path, cgroup__events="populated 1\nfrozen 0\n")
    past = time.monotonic()
    assert not files.wait_for_counter(f"{directory}/cgroup.events", "frozen", 1, past)
    assert files.wait_for_counter(f"{directory}/cgroup.events", "populated", 1, past)
    assert files.wait_for_counter(f"{directory}/gone", "populated", 0, past)


def test_version_2_writes_its_formats(tmp_path: Path) -> None:
    names = ("memory.max", "memory.swap.max", "memory.oom.group", "memory.reclaim", "cpu.max", "cpu.weight", "pids.max", "io.max")
    directory = _fill(tmp_path, **{name.replace(".", "__"): "" for name in names}, memory__current="100")
    cgroup_v2.set_memory(directory, 4096)
    cgroup_v2.set_cpu(directory, 1.5)
    cgroup_v2.set_processes(directory, 7)
    cgroup_v2.set_io(directory, "8:0", 1000, None, 70)
    written = {name: (tmp_path / name).read_text() for name in names}
    assert written == {
        "memory.max": "4096",
        "memory.swap.max": "0",
        "memory.oom.group": "0",
        "memory.reclaim": "",
        "cpu.max": "150000 100000",
        "cpu.weight": "150",
        "pids.max": "7",
        "io.max": "8:0 rbps=1000 wbps=max riops=70 wiops=70",
    }


def test_version_2_reclaims_and_then_refuses_rather_than_have_the_kernel_kill(tmp_path: Path) -> None:
    directory = _fill(tmp_path, memory__current=str(64 << 20), memory__max="max", memory__reclaim="")
    with pytest.raises(InvalidState, match="lowered to 16 MiB: 64 MiB are in use"):
        cgroup_v2.set_memory(directory, 16 << 20)
    assert (tmp_path / "memory.reclaim").read_text() == str(48 << 20)
    assert (tmp_path / "memory.max").read_text() == "max"


def test_both_versions_tell_the_same_things(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    first = _fill(
        tmp_path / "1",
        memory__usage_in_bytes="10",
        memory__max_usage_in_bytes="20",
        memory__limit_in_bytes="9223372036854771712",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        cpu__stat="nr_periods 1\nnr_throttled 1\nthrottled_time 2500000000\n",
        cpuacct__usage="1500000000",
    )
    second = _fill(
        tmp_path / "2",
        memory__current="10",
        memory__peak="20",
        memory__max="max",
        memory__events="low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 0\n",
        cpu__stat="usage_usec 1500000\nuser_usec 0\nthrottled_usec 2500000\n",
    )
    for driver, directory in ((cgroup_v1, first), (cgroup_v2, second)):
        assert driver.memory(directory) == (10, 20, None)
        assert driver.oom_kills(directory) == 3
        assert driver.throttled_seconds(directory) == 2.5
        assert driver.cpu_seconds(directory) == 1.5


def test_a_tiny_share_of_a_core_is_still_one_the_kernel_accepts(tmp_path: Path) -> None:
    directory = _fill(tmp_path, cpu__cfs_quota_us="", cpu__shares="")
    cgroup_v1.set_cpu(directory, 0.0001)
    assert ((tmp_path / "cpu.cfs_quota_us").read_text(), (tmp_path / "cpu.shares").read_text()) == ("1000", "2")


def test_descriptors_are_closed_after_each_read(tmp_path: Path) -> None:
    directory = _fill(tmp_path, pids__current="3")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        assert files.read_number(f"{directory}/pids.current") == 3
        files.wait_for_counter(f"{directory}/pids.current", "x", 0, 0.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_group_that_goes_while_it_is_written_to_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def gone(*_: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(files, "write", gone)
    assert not files.write_if_present(str(tmp_path / "cgroup.kill"), "1")
