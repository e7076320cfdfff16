"""Layers of memory, put together."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.errors import InfrastructureError
from agentenv.isolation.firecracker.jail import STATE
from agentenv.isolation.vm import memory_layers as memory

PAGE = 4096
PAGES = 16
SIZE = PAGES * PAGE


def write_layer(path: Path, pages: dict[int, int]) -> None:
    """A sparse file whose pages hold one byte's value each."""
    with path.open("wb") as file:
        file.truncate(SIZE)
        for number, value in pages.items():
            file.seek(number * PAGE)
            file.write(bytes([value]) * PAGE)


def checkpoint(directory: Path) -> Path:
    directory.mkdir()
    (directory / STATE).touch()
    return directory


def content(pages: dict[int, int]) -> bytes:
    return b"".join(bytes([pages.get(number, 0)]) * PAGE for number in range(PAGES))


LAYERS = st.lists(st.dictionaries(st.integers(0, PAGES - 1), st.integers(0, 255)), min_size=1, max_size=5)


@given(LAYERS)
@settings(max_examples=25, deadline=None)
def test_each_layer_lies_over_the_older_ones(tmp_path_factory: pytest.TempPathFactory, layers: list[dict[int, int]]) -> None:
    place = tmp_path_factory.mktemp("chain")
    newest = checkpoint(place / "0")
    write_layer(newest / memory.WHOLE, layers[0])
    for number, layer in enumerate(layers[1:], 1):
        older, newest = newest, checkpoint(place / str(number))
        write_layer(memory.build_on(older, newest), layer)
    expected: dict[int, int] = {}
    for layer in layers:
        expected |= layer
    assert memory.whole(newest, SIZE).read_bytes() == content(expected)
    assert sorted(path.name for path in newest.iterdir()) == [memory.WHOLE, STATE]


def test_a_checkpoint_needs_no_other(tmp_path: Path) -> None:
    older, newer = checkpoint(tmp_path / "older"), checkpoint(tmp_path / "newer")
    write_layer(older / memory.WHOLE, {0: 1, 1: 1})
    write_layer(memory.build_on(older, newer), {1: 2})
    (older / memory.WHOLE).unlink()
    assert memory.whole(newer, SIZE).read_bytes() == content({0: 1, 1: 2})


def test_the_older_one_stays_as_it_was(tmp_path: Path) -> None:
    older, newer = checkpoint(tmp_path / "older"), checkpoint(tmp_path / "newer")
    write_layer(older / memory.WHOLE, {0: 1})
    write_layer(memory.build_on(older, newer), {0: 2})
    memory.whole(newer, SIZE)
    assert memory.whole(older, SIZE).read_bytes() == content({0: 1})


def test_on_another_file_system_the_older_layers_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = checkpoint(tmp_path / "older"), checkpoint(tmp_path / "newer")
    write_layer(older / memory.WHOLE, {3: 7})

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr("agentenv.isolation.vm.memory_layers.os.link", refused)
    write_layer(memory.build_on(older, newer), {4: 8})
    assert memory.whole(newer, SIZE).read_bytes() == content({3: 7, 4: 8})


def test_several_put_it_together_at_once(tmp_path: Path) -> None:
    older, newer = checkpoint(tmp_path / "older"), checkpoint(tmp_path / "newer")
    write_layer(older / memory.WHOLE, {0: 1})
    write_layer(memory.build_on(older, newer), {1: 2})
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(memory.whole(newer, SIZE).read_bytes())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [content({0: 1, 1: 2})] * 8


def test_what_is_missing_or_cut_off_is_said(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "cut off")
    with pytest.raises(InfrastructureError, match="holds no memory of a machine"):
        memory.whole(directory, SIZE)
    write_layer(directory / memory.WHOLE, {})
    with pytest.raises(InfrastructureError, match=f"{SIZE} bytes instead of {2 * SIZE}"):
        memory.whole(directory, 2 * SIZE)


def test_a_layer_that_is_shorter_than_the_first_takes_nothing_away(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "short")
    write_layer(directory / "memory.00", {0: 1, PAGES - 1: 9})
    write_layer(directory / "memory.01", {0: 2})
    os.truncate(directory / "memory.01", PAGE)
    assert memory.whole(directory, SIZE).read_bytes() == content({0: 2, PAGES - 1: 9})
