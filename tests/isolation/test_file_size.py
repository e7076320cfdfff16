"""The ceiling for single files, on a real process."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.isolation.contract import Resources
from agentenv.isolation.namespace.file_size import file_size_ceiling, limit_file_size

MIB = 1 << 20


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (Resources(), None),
        (Resources(memory=MIB), None),
        (Resources(storage=20 * MIB, memory=8 * MIB), 20 * MIB),
        (Resources(storage=2 * MIB, memory=8 * MIB), 4 * MIB),
    ],
)
def test_the_ceiling_leaves_room_for_memory_files(resources: Resources, expected: int | None) -> None:
    assert file_size_ceiling(resources) == expected


def test_without_a_memory_limit_the_machines_memory_counts() -> None:
    assert (file_size_ceiling(Resources(storage=1)) or 0) > MIB


def test_children_of_a_limited_process_cannot_write_past_it(tmp_path: Path) -> None:
    program = (
        "input(); import subprocess, sys; print(subprocess.call(['/bin/sh', '-c', 'exec head -c 9000000 /dev/zero > $0', sys.argv[1]]))"
    )
    command = [sys.executable, "-S", "-c", program, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        limit_file_size(child.pid, Resources(storage=3 * MIB, memory=4 * MIB))
        limit_file_size(child.pid, Resources(storage=5 * MIB, memory=4 * MIB))
        assert resource.prlimit(child.pid, resource.RLIMIT_FSIZE)[0] == 5 * MIB
        output, _ = child.communicate(b"\n")
    assert int(output) in (-signal.SIGXFSZ, 1)
    assert (tmp_path / "file").stat().st_size == 5 * MIB
    limit_file_size(child.pid, Resources(storage=1))
