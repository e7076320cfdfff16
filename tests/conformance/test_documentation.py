"""docs/backends.md says of each backend what the backend says of itself."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentenv.cli.main import app
from agentenv.isolation import probe_all
from agentenv.isolation.contract import Capabilities
from agentenv.isolation.registry import registered

TEXT = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
CLAIMS = [field.name for field in dataclasses.fields(Capabilities) if field.name != "lost"]


def _table() -> dict[str, dict[str, str]]:
    """What stands in the table of capabilities: for each backend a word for each capability."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")]
    begin = next(number for number, cells in enumerate(lines) if cells[0] == "capability")
    backends = lines[begin][1:]
    rows = [cells for cells in lines[begin + 2 :] if re.fullmatch(r"`\w+`", cells[0])][: len(CLAIMS)]
    return {backend: {row[0].strip("`"): row[column + 1] for row in rows} for column, backend in enumerate(backends)}


def test_every_capability_and_every_backend_stands_in_the_table() -> None:
    table = _table()
    assert set(table) == set(registered())
    assert all(list(words) == CLAIMS for words in table.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="the table is that of root")
def test_no_backend_claims_what_the_table_denies_nor_lacks_without_a_word_what_it_grants() -> None:
    table = _table()
    for probe in probe_all():
        if probe.usable:
            for name, word in table[probe.backend].items():
                claimed = getattr(probe.capabilities, name)
                assert not (claimed and word == "no"), f"{probe.backend} claims {name}"
                assert claimed or word != "yes" or probe.capabilities.lost, f"{probe.backend} does not claim {name}"


def test_the_commands_that_it_names_are_there() -> None:
    for backend in re.findall(r"`agentenv setup -i (\w+)`", TEXT):
        assert backend in registered()
    help_text = CliRunner().invoke(app, ["conformance", "--help"], env={"COLUMNS": "200"}).output
    for option in re.findall(r"--[a-z]+", TEXT.split("agentenv conformance NAME")[1].splitlines()[0]):
        assert option in help_text
