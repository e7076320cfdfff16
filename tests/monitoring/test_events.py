"""Event logs: whole lines whatever happens, bounded, readable while written."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.monitoring import EventSink, FanOut, JsonLinesSink, NullSink
from agentenv.monitoring.events import LARGEST_LINE
from agentenv.monitoring.lines import LineFollower, last_lines, parse_line, read_lines


def test_an_event_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with JsonLinesSink(log) as sink:
        sink.emit("sandbox.created", id="a", path=Path("/x"), score=np.float32(0.5), row=np.arange(3), bad=math.nan, text="zwei\nZeilen")
    (line,) = log.read_text().splitlines()
    record = json.loads(line)
    assert record.pop("time") > 1.6e9
    assert record == {
        "event": "sandbox.created",
        "id": "a",
        "path": "/x",
        "score": 0.5,
        "row": [0, 1, 2],
        "bad": None,
        "text": "zwei\nZeilen",
    }


def test_sinks_fit_the_protocol_and_fan_out(tmp_path: Path) -> None:
    with JsonLinesSink(tmp_path / "a") as first, JsonLinesSink(tmp_path / "b") as second:
        both = FanOut(first, NullSink(), second)
        assert all(isinstance(sink, EventSink) for sink in (first, NullSink(), both))
        both.emit("x", n=1)
    assert [record["n"] for name in "ab" for record in read_lines(tmp_path / name)] == [1, 1]


def test_half_a_line_of_a_killed_writer_costs_that_line_only(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_bytes(b'{"n": 1}\n{"n": 2, "half": "li')
    with JsonLinesSink(log) as sink:
        sink.write({"n": 3})
    assert [record["n"] for record in read_lines(log)] == [1, 3]


def test_a_writer_killed_at_any_moment_leaves_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    code = (
        "import sys, itertools; from pathlib import Path; from agentenv.monitoring import JsonLinesSink\n"
        "sink = JsonLinesSink(Path(sys.argv[1]))\n"
        "for n in itertools.count():\n    sink.write({'n': n, 'padding': 'x' * (n % 500)})\n    n == 100 and print('.', flush=True)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(log)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.read(1) == b"."
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    numbers = [record["n"] for record in read_lines(log)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 100
    assert len(log.read_bytes().splitlines()) - len(numbers) <= 1


def test_the_log_is_bounded_and_the_oldest_goes_first(workplace: Path) -> None:
    log = workplace / "events.jsonl"
    with JsonLinesSink(log, max_bytes=1000, backups=2) as sink:
        for n in range(500):
            sink.write({"n": n})
    files = sorted(path.name for path in workplace.iterdir())
    assert files == ["events.jsonl", "events.jsonl.1", "events.jsonl.2"]
    assert all(path.stat().st_size <= 1000 for path in workplace.iterdir())
    numbers = [record["n"] for record in read_lines(log)]
    assert numbers == list(range(numbers[0], 500))


def test_a_huge_event_is_replaced_by_its_size(tmp_path: Path) -> None:
    with JsonLinesSink(tmp_path / "log") as sink:
        sink.emit("big", text="x" * (LARGEST_LINE + 1))
    (record,) = read_lines(tmp_path / "log")
    assert record["event"] == "big"
    assert record["truncated_bytes"] > LARGEST_LINE


def test_a_full_disk_loses_lines_and_says_so_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = True
    write = os.write

    def limited(descriptor: int, data: bytes) -> int:
        if full:
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    with JsonLinesSink(tmp_path / "log") as sink:
        monkeypatch.setattr(os, "write", limited)
        sink.write({"n": 1})
        sink.write({"n": 2})
        assert sink.lost == 2
        full = False
        sink.write({"n": 3})
        assert sink.lost == 0
    first, second = read_lines(tmp_path / "log")
    assert (first["event"], first["count"]) == ("monitoring.lines_lost", 2)
    assert second == {"n": 3}


def test_a_half_written_line_is_closed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    with JsonLinesSink(tmp_path / "log") as sink:
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:4]))
            sink.write({"n": 1})
        sink.write({"n": 2})
    assert [record.get("n") for record in read_lines(tmp_path / "log")] == [None, 2]


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    with JsonLinesSink(tmp_path / "log", max_bytes=20_000, backups=50) as sink:
        threads = [threading.Thread(target=lambda: [sink.emit("x", text="y" * 50) for _ in range(200)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(record["event"] == "x" for record in read_lines(tmp_path / "log")) == 1600


def test_after_closing_events_are_forgotten(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "log")
    sink.close()
    sink.close()
    sink.emit("late")
    assert list(read_lines(tmp_path / "log")) == []


def test_last_lines_reads_the_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 3) == []
    log.write_text("".join(f'{{"n": {n}}}\n' for n in range(20_000)) + '{"n": 2')
    assert [record["n"] for record in last_lines(log, 3)] == [19_997, 19_998, 19_999]
    assert len(last_lines(log, 100_000)) == 20_000
    assert last_lines(log, 0) == []


def test_a_follower_sees_each_line_once_through_rotations(tmp_path: Path) -> None:
    log = tmp_path / "log"
    follower = LineFollower(log)
    assert follower.poll() == []
    seen: list[int] = []
    with JsonLinesSink(log, max_bytes=500, backups=5) as sink:
        for n in range(200):
            sink.write({"n": n})
            if n % 7 == 0:
                seen += [record["n"] for record in follower.poll()]
    seen += [record["n"] for record in follower.poll()]
    assert seen == list(range(200))


def test_a_follower_that_comes_late_sees_all_that_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with JsonLinesSink(log, max_bytes=500, backups=100) as sink:
        for n in range(200):
            sink.write({"n": n})
    assert [record["n"] for record in LineFollower(log).poll()] == list(range(200))


def test_a_follower_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b'{"n": 1}\n{"n"')
    follower = LineFollower(log)
    assert follower.poll() == [{"n": 1}]
    with log.open("ab") as file:
        file.write(b": 2}\n")
    assert follower.poll() == [{"n": 2}]


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_no_line_breaks_a_reader(line: bytes) -> None:
    record = parse_line(line)
    assert record is None or isinstance(record, dict)
