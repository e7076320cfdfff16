"""Measuring disks: what occupies space, who writes, how much is left."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import InfrastructureError
from agentenv.images.files import allocated_bytes
from agentenv.node import disk_usage
from agentenv.node.disk_usage import Writer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB and 64 files."""
    point = tmp_path / "disk"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=64", "small", str(point)], check=True)
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


def _blocks(*paths: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in paths)


def test_files_count_by_the_blocks_they_occupy(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/full").write_bytes(b"x" * 300_000)
    with (tmp_path / "a/holes").open("wb") as holes:
        holes.truncate(1 << 40)
    assert allocated_bytes(tmp_path) == _blocks(*tmp_path.rglob("*"))
    assert 300_000 <= allocated_bytes(tmp_path) < 400_000


def test_a_file_with_several_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * 100_000)
    alone = allocated_bytes(tmp_path)
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert allocated_bytes(tmp_path) == alone


def test_links_are_not_followed_and_nothing_is_nothing(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "big").write_bytes(b"x" * MIB)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(outside)
    assert allocated_bytes(inside) < MIB
    assert allocated_bytes(tmp_path / "absent") == 0


@needs_root
def test_open_files_without_a_name_are_found_on_an_overlay(small_disk: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (small_disk / name).mkdir()
    options = ",".join(f"{kind}={small_disk / name}" for kind, name in (("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work")))
    subprocess.run(["mount", "-t", "overlay", "-o", options, "over", str(small_disk / "merged")], check=True)
    program = f"""
import os
a = open({str(small_disk / "merged/secret")!r}, "wb"); a.write(bytes(2 << 20)); a.flush(); os.unlink(a.name)
b = os.memfd_create("memory"); os.write(b, bytes(1 << 20)); c = os.dup(a.fileno())
print("up", flush=True); input()
"""
    try:
        with subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"up\n"
            assert allocated_bytes(small_disk / "upper") < MIB
            assert disk_usage.unlinked([child.pid]) == 2 * MIB
            child.communicate(b"\n")
        assert disk_usage.unlinked([child.pid]) == 0
    finally:
        subprocess.run(["umount", "-l", str(small_disk / "merged")], check=True)


def test_writers_are_named(tmp_path: Path) -> None:
    program = "import sys; f = open(sys.argv[1], 'wb'); f.write(bytes(3 << 20)); f.flush(); print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program, str(tmp_path / "f")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        counts = disk_usage.written([child.pid, 2**22 + 1])
        writers = disk_usage.writers({}, counts | {os.getpid(): 1})
        name = Path(f"/proc/{child.pid}/comm").read_text().strip()
        child.communicate(b"\n")
    if counts[child.pid] == 0:
        pytest.skip("the file system of the test does not account for writes (a tmpfs)")
    assert writers == (Writer(child.pid, name, counts[child.pid]),)
    assert counts[child.pid] >= 3 * MIB


def test_nobody_wrote_nobody_is_named() -> None:
    assert disk_usage.writers({}, {}) == ()
    assert disk_usage.writers({7: 100}, {7: 100}) == ()
    assert disk_usage.writers({}, {2**22 + 1: 5}) == (Writer(2**22 + 1, "a process that has ended", 5),)


def test_who_writes_little_is_no_cause() -> None:
    first, second, third = 2**22 + 1, 2**22 + 2, 2**22 + 3
    before, now = {first: 500, second: 0}, {first: 1500, second: 200, third: 90}
    assert [writer.pid for writer in disk_usage.writers(before, now)] == [first, second]
    assert [writer.pid for writer in disk_usage.writers(before, now, grown=5000)] == [first]
    assert disk_usage.writers(before, now, grown=20000) == ()


@needs_root
def test_a_full_disk_is_said_with_numbers(small_disk: Path) -> None:
    disk_usage.check_free(small_disk, 4 * MIB)
    (small_disk / "f").write_bytes(bytes(6 * MIB))
    with pytest.raises(InfrastructureError, match=r"is full: 2 MiB are free, 4 MiB are needed\. Remove"):
        disk_usage.check_free(small_disk, 4 * MIB)


@needs_root
def test_a_disk_without_inodes_is_said(small_disk: Path) -> None:
    for number in range(63):
        (small_disk / str(number)).touch()
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "one too many").touch()
    with pytest.raises(InfrastructureError, match="no inode left"):
        disk_usage.check_free(small_disk, 0)


@needs_root
def test_a_tmpfs_tells_at_once_and_proc_does_not(small_disk: Path) -> None:
    assert disk_usage.tells_at_once(small_disk)
    assert not disk_usage.tells_at_once(Path("/proc"))
    assert disk_usage.free_bytes(small_disk) == 8 * MIB
