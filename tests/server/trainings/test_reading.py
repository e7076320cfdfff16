"""Curves, differences and artefacts of runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import NotFound
from agentenv.server.trainings.reading import POINTS, artefact, artefacts, curves, differences, find, listed, thinned


def test_the_list_tells_what_was_run(runs_directory: Path) -> None:
    row = next(row for row in listed(runs_directory) if row.id == "quick")
    assert (row.status, row.algorithm, row.environment, row.step) == ("finished", "PPO", "basic_rl_env", 980)


def test_a_curve_has_what_was_measured_and_nothing_else() -> None:
    rows = [{"step": 1, "time": 5.0, "loss": 0.5, "note": "x", "done": True}, {"step": 2, "loss": None, "return_mean": 3}, {"loss": 9.0}]
    assert curves(rows) == {"return_mean": [(2, 3)], "loss": [(1, 0.5)]}


@given(st.lists(st.tuples(st.integers(), st.floats(allow_nan=False)), max_size=5000))
def test_a_thinned_curve_is_short_and_keeps_its_ends(points: list[tuple[float, float]]) -> None:
    fewer = thinned(points)
    assert len(fewer) <= POINTS + 1
    assert fewer[:1] == points[:1]
    assert fewer[-1:] == points[-1:]


def test_only_what_differs_is_told() -> None:
    first, second = {"a": 1, "b": {"c": 2, "d": [1]}}, {"a": 1, "b": {"c": 3, "d": [1]}, "e": 5}
    assert differences([first, second]) == [("b.c", [2, 3]), ("e", [None, 5])]


def test_artefacts_are_the_files_of_the_run(runs_directory: Path) -> None:
    run = find(runs_directory, "quick")
    names = [one.path for one in artefacts(run)]
    assert {"manifest.json", "metrics.jsonl", "result.json", "status.json"} <= set(names)
    assert "lock" not in names
    assert artefact(run, "result.json").name == "result.json"


@pytest.mark.parametrize("name", ["../slow/status.json", "/etc/passwd", "none", "."])
def test_nothing_else_is_one(runs_directory: Path, name: str) -> None:
    with pytest.raises(NotFound):
        artefact(find(runs_directory, "quick"), name)


@pytest.mark.parametrize("name", ["../x", "/etc", ".", "none"])
def test_a_run_is_found_by_its_id_only(runs_directory: Path, name: str) -> None:
    with pytest.raises(NotFound):
        find(runs_directory, name)
