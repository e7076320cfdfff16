"""The watch over storage limits, on a small file system of the test's own, so that nobody else writes there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.node import storage
from agentenv.node.storage import StorageExcess, StorageWatch

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
MIB = 1 << 20


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True)


def _start(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    point = tmp_path / "disk"
    point.mkdir()
    _run("mount", "-t", "tmpfs", "-o", "size=64m", "agentenv-test", str(point))
    yield point
    _run("umount", "-l", str(point))


@pytest.fixture(autouse=True)
def looks_follow_each_other_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_URGENT_FACTOR", 0)


@pytest.fixture
def upper(disk: Path) -> Path:
    (disk / "upper").mkdir()
    return disk / "upper"


async def _look(watch: StorageWatch) -> float:
    pause = watch.look()
    await watch.settled()
    return pause


async def test_an_excess_is_reported_once_until_it_grows(upper: Path) -> None:
    watch, reports = StorageWatch(), list[StorageExcess]()
    watch.add("s1", upper, 4 * MIB, reports.append)
    await _look(watch)
    (upper / "a").write_bytes(bytes(3 * MIB))
    await _look(watch)
    assert reports == []
    (upper / "b").write_bytes(bytes(3 * MIB))
    await _look(watch)
    assert [(report.id, report.limit, report.used) for report in reports] == [("s1", 4 * MIB, 6 * MIB)]
    await _look(watch)
    assert len(reports) == 1
    (upper / "c").write_bytes(bytes(MIB))
    await _look(watch)
    assert [report.used for report in reports] == [6 * MIB, 7 * MIB]
    await watch.close()


async def test_after_files_were_removed_all_is_well_until_the_next_excess(upper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_LEISURE", 0.0)
    monkeypatch.setattr(storage, "_LEISURE_FACTOR", 0)
    watch, reports = StorageWatch(), list[StorageExcess]()
    watch.add("s1", upper, MIB, reports.append)
    (upper / "a").write_bytes(bytes(2 * MIB))
    await _look(watch)
    (upper / "a").unlink()
    await _look(watch)
    (upper / "b").write_bytes(bytes(MIB // 2))
    await _look(watch)
    assert len(reports) == 1
    (upper / "b").write_bytes(bytes(2 * MIB))
    await _look(watch)
    assert len(reports) == 2
    await watch.close()


async def test_an_idle_disk_is_not_walked(upper: Path) -> None:
    watch = StorageWatch()
    for number in range(20):
        (upper / str(number)).mkdir()
        watch.add(f"s{number}", upper / str(number), 1 << 40, lambda report: None)
    await _look(watch)
    assert watch.walks == 20
    for _ in range(10):
        assert await _look(watch) == storage.SLOWEST
    assert watch.walks == 20
    await watch.close()


async def test_only_those_who_may_be_over_are_walked_at_once(disk: Path) -> None:
    watch, reports = StorageWatch(), list[StorageExcess]()
    for name, limit in (("small", MIB), ("large", 32 * MIB)):
        (disk / name).mkdir()
        watch.add(name, disk / name, limit, reports.append)
    await _look(watch)
    (disk / "small/a").write_bytes(bytes(2 * MIB))
    await _look(watch)
    assert watch.walks == 3
    assert [report.id for report in reports] == ["small"]
    await watch.close()


async def test_what_others_free_does_not_hide_a_writer(disk: Path, upper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_LEISURE", 0.0)
    monkeypatch.setattr(storage, "_LEISURE_FACTOR", 0)
    (disk / "others").write_bytes(bytes(8 * MIB))
    watch, reports = StorageWatch(), list[StorageExcess]()
    watch.add("s1", upper, MIB, reports.append)
    await _look(watch)
    (disk / "others").unlink()
    (upper / "a").write_bytes(bytes(4 * MIB))
    await _look(watch)
    assert len(reports) == 1
    await watch.close()


async def test_the_less_is_left_the_sooner_is_the_next_look(upper: Path) -> None:
    watch = StorageWatch()
    watch.add("s1", upper, 1 << 40, lambda report: None)
    pauses = [await _look(watch)]
    for limit in (256 * MIB, MIB, 0):
        watch.set_limit("s1", limit)
        await _look(watch)
        pauses.append(await _look(watch))
    assert pauses == [storage.SLOWEST, 256 * MIB / storage.QUICK_DISK, storage.FASTEST, storage.FASTEST]
    await watch.close()


async def test_a_new_limit_counts_at_once(upper: Path) -> None:
    watch, reports = StorageWatch(), list[StorageExcess]()
    watch.add("s1", upper, 8 * MIB, reports.append)
    (upper / "a").write_bytes(bytes(2 * MIB))
    await _look(watch)
    watch.set_limit("s1", MIB)
    await _look(watch)
    assert [report.limit for report in reports] == [MIB]
    assert await watch.used("s1") == 2 * MIB
    with pytest.raises(KeyError):
        watch.set_limit("s2", MIB)
    await watch.close()


async def test_a_removed_watch_reports_no_more_and_frees_the_disk(disk: Path, upper: Path) -> None:
    watch, reports = StorageWatch(), list[StorageExcess]()
    watch.add("s1", upper, 1, reports.append)
    (upper / "a").write_bytes(bytes(MIB))
    watch.look()
    watch.remove("s1")
    watch.remove("s1")
    await watch.settled()
    assert reports == []
    await watch.close()
    _run("mount", "-o", "remount,ro", str(disk))


async def test_a_directory_that_vanishes_is_empty(upper: Path) -> None:
    watch, reports = StorageWatch(), list[StorageExcess]()
    watch.add("s1", upper, 1 << 40, reports.append)
    await _look(watch)
    _run("rmdir", str(upper))
    await _look(watch)
    assert await watch.used("s1") == 0
    await watch.close()


async def test_by_itself_it_finds_a_real_writer_in_time(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    program = f"""
import sys
f = open({str(upper / "endless")!r}, "wb", buffering=0)
sys.stdin.readline()
while f.tell() < 1 << 30: f.write(bytes(1 << 16))
"""
    watch, found = StorageWatch(), asyncio.get_running_loop().create_future()
    with _start(program) as child:

        def stop(report: StorageExcess) -> None:
            child.kill()
            if not found.done():
                found.set_result(report)

        watch.start()
        watch.start()
        watch.add("s1", upper, 8 * MIB, stop, lambda: [child.pid])
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        report = await asyncio.wait_for(found, 60)
        assert child.wait() == -9
    assert report.used > 8 * MIB
    assert {writer.pid for writer in report.writers} <= {child.pid}
    await watch.close()
    await watch.close()
