"""Spreading directories over an ext4 file system without a journal, and leaving every other alone."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

import pytest

from agentenv.isolation.namespace import inodes

TOP = 0x00020000


def _flags(directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        return int(struct.unpack("l", fcntl.ioctl(descriptor, 0x80086601, struct.pack("l", 0)))[0])
    finally:
        os.close(descriptor)


def test_the_mark_is_set_where_there_is_no_journal(tmp_path: Path) -> None:
    if not inodes._lacks_journal(tmp_path):
        pytest.skip("the temporary directory is not on ext4 without a journal")
    assert inodes.spread(tmp_path)
    assert _flags(tmp_path) & TOP
    assert inodes.spread(tmp_path)


def test_another_file_system_is_left_alone() -> None:
    assert not inodes.spread(Path("/proc"))


def test_a_journal_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inodes, "_file_system", lambda _: 0xEF53)
    monkeypatch.setattr(inodes.Path, "iterdir", lambda _: iter([Path("vda-8"), Path("sda-8")]))
    monkeypatch.setattr(inodes.Path, "readlink", lambda _: Path("../../block/sda"))
    assert not inodes._lacks_journal(tmp_path)
    monkeypatch.setattr(inodes.Path, "readlink", lambda _: Path("../../block/sdb"))
    assert inodes._lacks_journal(tmp_path)


def test_where_it_cannot_be_told_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Path) -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(inodes, "_file_system", lambda _: 0xEF53)
    monkeypatch.setattr(inodes.Path, "readlink", missing)
    assert not inodes.spread(tmp_path)
