"""What is shown of a training, on a terminal, in a log and to a program."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from agentenv.train.progress import ASCII_BLOCKS, JsonProgress, LiveProgress, PlainProgress, SilentProgress, Standing, sparkline


def standing(step: int = 500) -> Standing:
    return Standing(
        step=step,
        max_steps=1000,
        seconds=10.0,
        steps_per_second=1234.5,
        eta=75.0,
        episodes=9,
        return_mean=6.5,
        optimal=13.0,
        eval_return=10.4,
        eval_fraction=0.8,
        infra_errors=2,
        curve=(0.0, 3.0, 6.5),
    )


def shown(progress: SilentProgress) -> None:
    progress.begin("Training PPO on x", Path("runs/1"))
    progress.say("something happened")
    progress.update(standing())
    progress.evaluated(500, 10.4, 0.8)
    progress.end(["Done: all.", "Results: runs/1"], {"steps": 1000})
    progress.close()


def test_plain_lines_hold_every_figure() -> None:
    stream = io.StringIO()
    shown(PlainProgress(stream, interval=-1.0))
    assert stream.getvalue().splitlines() == [
        "Training PPO on x",
        "Writing to runs/1",
        "something happened",
        "step       500 of 1,000  1,234 steps/s  return 6.50 (50% of optimal)  evaluated 10.40 (80% of optimal)  "
        "1m15s left  2 sandboxes replaced",
        "evaluated at step 500: mean return 10.40, 80% of the optimal",
        "Done: all.",
        "Results: runs/1",
    ]


def test_plain_lines_do_not_flood_a_log() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream, interval=3600.0)
    for step in range(100):
        progress.update(standing(step))
    assert stream.getvalue() == ""


def test_json_lines_can_be_read_back() -> None:
    stream = io.StringIO()
    shown(JsonProgress(stream))
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["begin", "note", "progress", "evaluation", "end"]
    assert events[2]["return_mean"] == 6.5
    assert events[3] == {"event": "evaluation", "step": 500, "mean_return": 10.4, "fraction_of_optimal": 0.8}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_live_display_draws_a_bar_figures_and_the_curve(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding), force_terminal=True, width=100, color_system=None)
    progress = LiveProgress(console)
    progress.begin("Training PPO on x", Path("runs/1"))
    progress.update(standing())
    progress.end(["Done: all."], {})
    console.file.flush()
    text = raw.getvalue().decode(encoding)
    for part in ("500 of 1,000 steps", "1,234 steps/s", "return 6.50 (50% of optimal)", "1m15s left", "Done: all."):
        assert part in text
    assert (f"{ASCII_BLOCKS[0]}" if encoding == "ascii" else "▁▄█") in text


def test_nothing_is_shown_where_nothing_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    shown(SilentProgress())
    assert capsys.readouterr().out == ""


def test_a_sparkline_spans_its_blocks_and_its_width() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([0.0, 7.0]) == "▁█"
    assert len(sparkline([float(value) for value in range(1000)])) == 60
    assert sparkline([float(value) for value in range(8)]) == "▁▂▃▄▅▆▇█"
