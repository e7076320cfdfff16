"""Runs live in a directory of the test's own, and so does the index."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an AGENTENV_HOME beside it."""
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "home"))
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    return place
