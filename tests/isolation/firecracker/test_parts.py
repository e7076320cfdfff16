"""The driver's small parts: versions, metrics, jails, the tiny guest's bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.conditions import needs_root

from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.firecracker import counter
from agentenv.isolation.firecracker.jail import ROOT, UPPER, Jail
from agentenv.isolation.firecracker.metrics import Meter, Metrics
from agentenv.isolation.firecracker.release import Programs, Release

SOURCE = Path(__file__).with_name("guest.S")


def release(*version: int, snapshot_format: tuple[int, ...] = (6, 0, 0)) -> Release:
    return Release(version, snapshot_format)


def test_what_differs_between_versions() -> None:
    old, new = release(1, 10, 1), release(1, 15, 0)
    assert (old.tracks_by_new_name, new.tracks_by_new_name) == (False, True)
    assert (old.reports_free_pages, new.reports_free_pages) == (False, True)
    assert (old.writes_whole_differences(3072), old.writes_whole_differences(3073)) == (True, False)
    assert new.writes_whole_differences(65536)
    assert (old.lost, new.lost) == ((), ())
    assert release(1, 16, 1).lost
    assert str(old) == "1.10.1"


@pytest.mark.parametrize(
    ("theirs", "read"), [((6, 0, 0), True), ((6, 1, 0), True), ((6, 2, 0), False), ((5, 0, 0), False), ((7, 0, 0), False)]
)
def test_which_states_are_read(theirs: tuple[int, ...], read: bool) -> None:
    assert release(1, 13, 0, snapshot_format=(6, 1, 9)).reads(theirs) is read


def program(path: Path, version: str, snapshot_format: str = "v6.0.0") -> Path:
    path.write_text(f'#!/bin/sh\n[ "$1" = --snapshot-version ] && echo "{snapshot_format}" || echo "{path.name} {version}"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def store(tmp_path: Path) -> ArtefactStore:
    return ArtefactStore.open(tmp_path / "artefacts")


def test_the_programs_tell_their_version(tmp_path: Path, store: ArtefactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTENV_FIRECRACKER", str(program(tmp_path / "firecracker-v1.11", "v1.11.0", "v5.1.0")))
    monkeypatch.setenv("AGENTENV_JAILER", str(program(tmp_path / "jailer", "v1.11.0")))
    found = Programs.find(store, jailed=True)
    assert found.release == Release((1, 11, 0), (5, 1, 0))
    assert found.jailer == tmp_path / "jailer"
    assert Programs.find(store, jailed=False).jailer is None


@pytest.mark.parametrize(
    ("name", "version", "snapshot_format", "said"),
    [
        ("fc", "v1.12.1", "v6.0.0", "the jailer starts no program called 'fc'"),
        ("firecracker", "v1.12.1", "none", "does not tell the format of its snapshots; it printed 'none'"),
        ("firecracker", "v1.9.0", "v6.0.0", r"1\.10"),
    ],
)
def test_programs_that_cannot_be_used(
    tmp_path: Path, store: ArtefactStore, monkeypatch: pytest.MonkeyPatch, name: str, version: str, snapshot_format: str, said: str
) -> None:
    monkeypatch.setenv("AGENTENV_FIRECRACKER", str(program(tmp_path / name, version, snapshot_format)))
    monkeypatch.setenv("AGENTENV_JAILER", str(program(tmp_path / "jailer", "v1.12.1")))
    with pytest.raises(BackendUnavailable, match=said):
        Programs.find(store, jailed=True)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    with ExitStack() as held:
        ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for end in ends:
            held.callback(os.close, end)
        yield ends


def test_metrics_add_up_over_lines_and_pieces(pipe: tuple[int, int]) -> None:
    meter = Meter(pipe[0])
    assert meter.read() == Metrics()
    os.write(pipe[1], b'{"block":{"read_bytes":5,"other":1},"net":{"tx_bytes_count":7}}\n{"block":{"read_b')
    assert meter.read() == Metrics(disk_read=5, network_sent=7)
    os.write(pipe[1], b'ytes":3},"seccomp":{"num_faults":1}}\nnothing of it\n{"block":{"write_bytes":2}}\n')
    assert meter.read() == Metrics(disk_read=8, disk_written=2, network_sent=7, seccomp_faults=1)


def new_jail(place: Path) -> Jail:
    base = place / "jails"
    jail = Jail("a", base, base / "firecracker" / "a" / "root", 1_900_000_001)
    jail.make()
    return jail


@needs_root
def test_what_a_jail_may_read_is_linked_and_what_not_is_copied(tmp_path: Path) -> None:
    jail = new_jail(tmp_path)
    assert (jail.root.stat().st_uid, jail.root.stat().st_mode & 0o777) == (jail.user, 0o700)
    shared, private, written = tmp_path / "shared", tmp_path / "private", tmp_path / "written"
    for path, mode in ((shared, 0o644), (private, 0o600), (written, 0o600)):
        path.write_text(path.name)
        path.chmod(mode)
    jail.bring(shared, ROOT)
    jail.bring(private, "kernel")
    jail.give(written, UPPER)
    assert (jail.root / ROOT).samefile(shared)
    copy = jail.root / "kernel"
    assert (copy.read_text(), copy.stat().st_mode & 0o777) == ("private", 0o444)
    jail.bring(private, "again")
    assert copy.samefile(jail.root / "again")
    assert private.stat().st_mode & 0o777 == 0o600
    assert (jail.root / UPPER).samefile(written)
    assert written.stat().st_uid == jail.user
    (jail.root / "state").write_text("written by Firecracker")
    jail.take("state", tmp_path / "state")
    assert ((tmp_path / "state").stat().st_uid, (tmp_path / "state").stat().st_mode & 0o777) == (0, 0o444)
    jail.remove()
    jail.remove()
    assert list((tmp_path / "jails/firecracker").iterdir()) == []
    assert shared.read_text() == "shared"


@needs_root
def test_a_disk_on_another_file_system_cannot_be_given(tmp_path: Path) -> None:
    jail = new_jail(tmp_path)
    with pytest.raises(InfrastructureError, match="are on two file systems"):
        jail.give(Path("/proc/version"), UPPER)
    elsewhere = Path("/dev/shm", f"agentenv-{os.getpid()}")
    elsewhere.write_text("on another")
    try:
        jail.bring(elsewhere, ROOT)
    finally:
        elsewhere.unlink()
    assert (jail.root / ROOT).read_text() == "on another"


def test_the_tiny_guest_is_what_its_source_says(tmp_path: Path) -> None:
    if not all(shutil.which(name) for name in ("as", "ld", "objcopy")):
        pytest.skip("no assembler here (package binutils)")
    if os.uname().machine != "x86_64":
        pytest.skip("its source is for x86-64")
    built = tmp_path / "guest"
    subprocess.run(["as", SOURCE, "-o", f"{built}.o"], check=True)
    subprocess.run(["ld", "-Ttext=0x100000", "-nostdlib", "-static", "-o", f"{built}.elf", f"{built}.o"], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", f"{built}.elf", built], check=True)
    code = built.read_bytes()
    assert counter.write_kernel(tmp_path / "kernel").read_bytes().endswith(code)
    touching = counter.write_kernel(tmp_path / "touching", pages=7).read_bytes()
    assert touching.endswith(code[:-8] + (7).to_bytes(8, "little"))


def test_counts_are_read_off_whole_lines() -> None:
    assert counter.count("") is None
    assert counter.count("000000000000000a\n000000") == 10
    assert counter.count("000000000000000a\n2026-11-30 a complaint in between\n") == 10
