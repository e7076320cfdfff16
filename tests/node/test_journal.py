"""The journal: what a reader makes of it, whatever a crash or a full disk left of the last lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.node import journal as module
from agentenv.node.journal import Journal, read_journal

ACTION = st.one_of(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.dictionaries(st.sampled_from(["state", "x"]), st.integers(0, 9), min_size=1)),
    st.tuples(st.sampled_from(["a", "b", "c"]), st.none()),
)


def replay(actions: list[tuple[str, dict[str, int] | None]]) -> dict[str, dict[str, int]]:
    live: dict[str, dict[str, int]] = {}
    for name, facts in actions:
        if facts is None:
            live.pop(name, None)
        else:
            live.setdefault(name, {}).update(facts)
    return live


def write(path: Path, actions: list[tuple[str, dict[str, int] | None]]) -> None:
    journal = Journal(path)
    for name, facts in actions:
        journal.forget(name) if facts is None else journal.record(name, **facts)
    journal.close()


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(ACTION, max_size=12))
def test_a_reader_sees_what_was_written(actions: list[tuple[str, dict[str, int] | None]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    write(path, actions)
    assert read_journal(path) == replay(actions)


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(ACTION, min_size=1, max_size=8), data=st.data())
def test_a_cut_off_end_costs_at_most_the_last_line(
    actions: list[tuple[str, dict[str, int] | None]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    write(path, actions)
    whole = path.read_bytes()
    kept = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:kept])
    lines = whole[:kept].count(b"\n")
    # A line that lacks only its line feed is whole as well.
    assert read_journal(path) in (replay(actions[:lines]), replay(actions[: lines + 1]))


def test_lines_that_mean_nothing_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b'{"id":"a","state":"running"}\n\xff\xfe garbage\n[1]\n{"state":"x"}\n{"id":7}\n\n{"id":"b","x":1}\n{"id":"a","sta')
    assert read_journal(path) == {"a": {"state": "running"}, "b": {"x": 1}}


def test_there_may_be_no_journal_yet(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "missing") == {}


def test_a_line_that_did_not_fit_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    journal.record("a", state="running")
    write_all = os.write
    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "write", lambda descriptor, data: write_all(descriptor, data[:9]))
        with pytest.raises(OSError, match="No space left"):
            journal.record("b", state="creating")
        journal.forget("a")
    journal.record("c", state="running")
    assert read_journal(tmp_path / "journal") == {"a": {"state": "running"}, "c": {"state": "running"}}


def test_a_long_history_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPACT_ABOVE", 2000)
    journal = Journal(tmp_path / "journal")
    journal.record("stays", state="running", note="x" * 100)
    for number in range(200):
        journal.record(f"s{number}", state="running")
        journal.forget(f"s{number}")
    assert (tmp_path / "journal").stat().st_size < 4000
    journal.record("last", state="running")
    assert read_journal(tmp_path / "journal").keys() == {"stays", "last"}
