"""Layouts: what one side writes the other reads, with numpy and without, and both agree on where everything lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs.batch import AnswerRows
from agentenv.envs.guest import codec, layout, spaces
from agentenv.envs.guest.layout import layout_of
from agentenv.envs.guest.spaces import describe
from agentenv.envs.guest.values import dumps, loads
from agentenv.envs.guest.wire import OBSERVATION_OFFSET
from agentenv.envs.gymnasium_spaces import build

numeric = st.one_of(
    st.builds(
        lambda shape, dtype: gym_spaces.Box(0, 1, tuple(shape), dtype),
        st.lists(st.integers(1, 3), max_size=3),
        st.sampled_from([np.float32, np.float64, np.uint8, np.int16]),
    ),
    st.builds(lambda n, start: gym_spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)),
    st.builds(gym_spaces.MultiBinary, st.integers(1, 5)),
    st.builds(gym_spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=4)),
)
fixed = st.recursive(
    numeric,
    lambda inner: (
        st.builds(gym_spaces.Dict, st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3))
        | st.builds(lambda parts: gym_spaces.Tuple(tuple(parts)), st.lists(inner, min_size=1, max_size=3))
    ),
    max_leaves=5,
)


@given(space=fixed, seed=st.integers(0, 1000))
def test_what_the_guest_writes_the_host_reads(space: gym_spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    value = space.sample()
    description = loads(dumps(describe(space)))
    rows = AnswerRows(description, build(description), 1)
    measured = layout_of(description)
    assert measured is not None
    buffer = bytearray(OBSERVATION_OFFSET + measured.size)
    write = codec.observation_writer(description, buffer, OBSERVATION_OFFSET)
    assert write is not None
    write(value)
    rows.slots[0][: len(buffer)] = buffer
    assert equal(rows.one(0), value)
    read = codec.action_reader(description, buffer, OBSERVATION_OFFSET, numpy_scalars=True)
    assert read is not None
    assert equal(read(), value)
    assert build(description) == space


@given(space=fixed, seed=st.integers(0, 1000))
def test_numpy_is_not_needed(space: gym_spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    value = space.sample()
    measured = layout_of(describe(space))
    assert measured is not None
    buffer = bytearray(measured.size)
    for leaf in measured.leaves:
        part = layout.pick(value, leaf.path)
        layout.leaf_writer(leaf, buffer, 0)(np.asarray(part).tolist())
        assert layout.leaf_reader(leaf, buffer, 0)() == np.asarray(part).tolist()
        before = bytes(buffer)
        if leaf.shape:
            layout.leaf_writer(leaf, buffer, 0)(np.asarray(part))
        assert buffer == before


def equal(one: Any, other: Any) -> bool:
    if isinstance(other, dict):
        return set(one) == set(other) and all(equal(one[key], other[key]) for key in other)
    if isinstance(other, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(np.array_equal(one, other)) and np.asarray(one).dtype == np.asarray(other).dtype


def test_leaves_begin_at_multiples_of_eight() -> None:
    space = spaces.Dict({"flag": spaces.MultiBinary((3,)), "speed": spaces.Box(0.0, 1.0, (2,)), "kind": spaces.Discrete(4)})
    measured = layout_of(describe(space))
    assert measured is not None
    assert [(leaf.path, leaf.offset, leaf.size) for leaf in measured.leaves] == [(("flag",), 0, 3), (("speed",), 8, 8), (("kind",), 16, 8)]
    assert measured.size == 24


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(3)), spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Text(3)})]
)
def test_spaces_that_vary_have_no_layout(space: spaces.Space) -> None:
    assert layout_of(describe(space)) is None


@pytest.mark.parametrize(
    ("description", "complaint"),
    [
        ({"type": "box", "dtype": "|O", "shape": [2]}, "element type"),
        ({"type": "box", "dtype": "<f8", "shape": [1 << 30]}, "frame"),
        ({"type": "box", "dtype": "<f8", "shape": [-1]}, "shape"),
        ({"type": "cube"}, "no type of space"),
    ],
)
def test_descriptions_that_make_no_sense(description: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        layout_of(description)


def test_a_description_nested_too_deep() -> None:
    description: dict[str, Any] = {"type": "discrete", "dtype": "<i8"}
    for _ in range(20):
        description = {"type": "tuple", "spaces": [description]}
    with pytest.raises(ValueError, match="deeper than 16"):
        layout_of(description)


@pytest.mark.parametrize("value", [[1.0], [1.0, 2.0, 3.0], 5.0, "ab", [[1.0, 2.0]], None])
def test_an_observation_of_another_shape_is_a_mismatch(value: Any) -> None:
    write = codec.observation_writer(describe(spaces.Box(0.0, 1.0, (2,))), bytearray(8), 0)
    assert write is not None
    with pytest.raises(codec.Mismatch, match="does not fit the declared space"):
        write(value)
