"""Every space of Gymnasium survives the way through its description, and garbage is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs import spaces as ours
from agentenv.envs.guest.codec import conform
from agentenv.envs.guest.spaces import describe
from agentenv.envs.guest.values import dumps, loads
from agentenv.envs.gymnasium_spaces import build

SPACES = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(np.array([-4.8, -np.inf], np.float32), np.array([4.8, np.inf], np.float32)),
    spaces.Box(0, 255, (4, 5, 3), np.uint8),
    spaces.Box(-2.0, 2.0, (), np.float64),
    spaces.Discrete(5, start=-2),
    spaces.Discrete(3, dtype=np.int32),
    spaces.MultiBinary([2, 3]),
    spaces.MultiDiscrete([2, 3], start=[1, 0]),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.Text(8, min_length=2, charset="abc"),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 1, (2,))}),
    spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]),
    spaces.Sequence(spaces.Box(0, 1, (2,))),
    spaces.Sequence(spaces.Discrete(3), stack=True),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(4)),
    spaces.Graph(spaces.Discrete(3), None),
    spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_survives_its_description(space: spaces.Space[Any]) -> None:
    assert build(loads(dumps(describe(space)))) == space


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_samples_survive_as_json(space: spaces.Space[Any]) -> None:
    description = loads(dumps(describe(space)))
    space.seed(3)
    for _ in range(5):
        assert space.contains(conform(description, loads(dumps(space.sample()))))


def test_the_order_of_a_dict_is_kept() -> None:
    description = describe(ours.Dict({"z": ours.Discrete(2), "a": ours.Discrete(3)}))
    built = build(loads(dumps(description)))
    assert isinstance(built, spaces.Dict)
    assert list(built.spaces) == ["z", "a"]


def test_our_spaces_mean_the_same_as_gymnasiums() -> None:
    pairs: list[tuple[ours.Space, spaces.Space[Any]]] = [
        (ours.Box(-1.0, float("inf"), (2,)), spaces.Box(-1.0, np.inf, (2,), np.float32)),
        (ours.Box([0.0, 1.0], [1.0, 2.0], (2,), "float64"), spaces.Box(np.array([0.0, 1.0]), np.array([1.0, 2.0]), dtype=np.float64)),
        (ours.Discrete(4, start=1), spaces.Discrete(4, start=1)),
        (ours.MultiBinary((2,)), spaces.MultiBinary(2)),
        (ours.MultiDiscrete((2, 3)), spaces.MultiDiscrete([2, 3])),
        (ours.Text(4, 0, "xy"), spaces.Text(4, min_length=0, charset="xy")),
        (ours.Tuple((ours.Discrete(2),)), spaces.Tuple([spaces.Discrete(2)])),
        (ours.Sequence(ours.Discrete(2)), spaces.Sequence(spaces.Discrete(2))),
    ]
    for mine, theirs in pairs:
        assert build(loads(dumps(describe(mine)))) == theirs


def test_something_else_is_no_space() -> None:
    with pytest.raises(TypeError, match="is not a space"):
        describe(3)


descriptions = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=5) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "dtype", "shape", "low", "high", "n", "start", "spaces", "nvec"]), inner, max_size=6)
    ),
    max_leaves=10,
)


@given(
    kind=st.sampled_from(["box", "discrete", "multi_binary", "multi_discrete", "dict", "tuple", "text", "graph", "x"]), rest=descriptions
)
def test_garbage_is_refused(kind: str, rest: Any) -> None:
    description = {**(rest if isinstance(rest, dict) else {}), "type": kind}
    try:
        built = build(description)
    except ValueError:
        return
    assert isinstance(built, spaces.Space)
