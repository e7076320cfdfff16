"""The archive format, read back by the program of that name and by a reader of our own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.isolation.vm import cpio

NAMES = st.text("abcdefghijklmnopqrstuvwxyz-._0123456789", min_size=1, max_size=40)


def read_back(data: bytes) -> list[tuple[str, int, bytes]]:
    found, at = [], 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name_at, size, name_size = at + 110, fields[6], fields[11]
        name = data[name_at : name_at + name_size - 1].decode()
        content_at = (name_at + name_size + 3) // 4 * 4
        if name == cpio.TRAILER:
            assert (content_at + 3) // 4 * 4 == len(data)
            return found
        found.append((name, fields[1], data[content_at : content_at + size]))
        at = (content_at + size + 3) // 4 * 4


@given(st.lists(st.tuples(NAMES, st.binary(max_size=50))))
def test_round_trip(files: list[tuple[str, bytes]]) -> None:
    entries = [cpio.file(name, content) for name, content in files]
    assert [(name, content) for name, _, content in read_back(cpio.archive(entries))] == files
    assert cpio.archive(entries) == cpio.archive(list(entries))


@pytest.mark.skipif(shutil.which("cpio") is None, reason="no cpio program")
def test_the_program_agrees(tmp_path: Path) -> None:
    data = cpio.archive([cpio.directory("d"), cpio.file("d/f", b"content", 0o640), cpio.character_device("d/console", 5, 1)])
    listed = subprocess.run(["cpio", "-tv"], input=data, capture_output=True, check=True, cwd=tmp_path).stdout.decode().splitlines()
    assert [line.split()[0] for line in listed] == ["drwxr-xr-x", "-rw-r-----", "crw-------"]
    assert "5,   1" in listed[2]
