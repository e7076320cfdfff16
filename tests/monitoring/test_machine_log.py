"""The log that all nodes of a home share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agentenv.monitoring.lines import read_lines
from agentenv.monitoring.machine_log import SharedJsonLinesSink, machine_log_file, open_machine_log

WRITER = """
import sys
from pathlib import Path
from agentenv.monitoring.machine_log import SharedJsonLinesSink
with SharedJsonLinesSink(Path(sys.argv[1]), max_bytes=20_000, backups=100) as sink:
    print(".", flush=True)
    sys.stdin.read()
    for n in range(500):
        sink.emit("x", n=n, text="y" * 60)
"""


def test_several_processes_write_and_turn_one_log(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == ".\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0] * 4
    records = list(read_lines(log))
    assert Counter(record["pid"] for record in records) == {writer.pid: 500 for writer in writers}
    for writer in writers:
        assert sorted(record["n"] for record in records if record["pid"] == writer.pid) == list(range(500))
        assert writer.stdout is not None
        writer.stdout.close()
    assert len(list(tmp_path.glob("events.jsonl.[0-9]*"))) > 5


def test_a_log_that_was_removed_is_made_again(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with SharedJsonLinesSink(log) as sink:
        sink.emit("first")
        log.unlink()
        sink.emit("second")
    assert [record["event"] for record in read_lines(log)] == ["second"]


def test_where_there_can_be_no_log_the_node_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with_log = open_machine_log(tmp_path)
    with_log.emit("node.opened", owner="a")
    with_log.close()
    (record,) = read_lines(machine_log_file(tmp_path))
    assert (record["event"], record["pid"]) == ("node.opened", os.getpid())
    without = open_machine_log(tmp_path / "nowhere")
    without.emit("node.opened")
    without.close()
    assert "monitoring.no_machine_log" in caplog.text
