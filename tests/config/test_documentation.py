"""docs/configuration.md shows what the reader accepts, and names every key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from agentenv.config import Config, MachineFacts, loads
from agentenv.config.explain import sections_of

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def keys(model: type[BaseModel]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield name
        for section in sections_of(info.annotation):
            yield from keys(section)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_valid(example: str) -> None:
    assert loads(example, machine=MachineFacts(cores=4, memory=8 * 10**9)).to_dict()


@pytest.mark.parametrize("key", sorted(set(keys(Config))))
def test_every_key_is_described(key: str) -> None:
    assert re.search(rf"[`.]{key}\b|\b{key}:|## {key}", PAGE)
