"""Values as JSON: exact round trips, and nothing dangerous is ever accepted."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from agentenv.envs.guest.values import dumps, loads

arrays = hnp.arrays(
    dtype=st.sampled_from(["<f4", "<f8", "<i8", "<u2", "|b1", "|i1", "<c16", "<U3"]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=20) | arrays
keys = st.text() | st.sampled_from(["__array__", "__dict__", "__float__", "__x__"])
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers(), inner, max_size=2)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(trees)
def test_values_arrive_as_they_were_sent(value: Any) -> None:
    assert same(loads(dumps(value)), value)


@given(st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True), np.uint8(7), np.str_("ab")]))
def test_numpy_scalars_stay_numpy_scalars(value: Any) -> None:
    back = loads(dumps({"key": [value]}))["key"][0]
    assert back == value
    assert isinstance(back, str if isinstance(value, np.str_) else type(value))


def test_what_is_written_is_plain_json() -> None:
    text = dumps({"score": float("inf"), "position": np.array([1.0], np.float32), "pair": (1, 2)})
    plain = json.loads(text, parse_constant=pytest.fail)
    assert plain == {
        "score": {"__float__": "inf"},
        "position": {"__array__": {"dtype": "<f4", "shape": [1], "base64": "AACAPw=="}},
        "pair": {"__tuple__": [1, 2]},
    }


def test_an_object_without_meaning_elsewhere_arrives_as_its_text() -> None:
    assert loads(dumps({"thing": range(3)})) == {"thing": "range(0, 3)"}
    assert loads(dumps(np.array([object()], dtype=object))).startswith("array([<object object")


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error(data: bytes) -> None:
    try:
        loads(data)
    except ValueError:
        return
    json.loads(data)


@pytest.mark.parametrize(
    "content",
    [
        {"dtype": "|O", "shape": [1], "base64": "AAAAAAAAAAA="},
        {"dtype": "<f4", "shape": [2], "base64": "AAAAAA=="},
        {"dtype": "<f4", "shape": [-1], "base64": "AAAAAA=="},
        {"dtype": "<f4", "shape": [1 << 31, 1 << 31], "base64": ""},
        {"dtype": "<f4", "shape": [1], "base64": "%%%"},
        {"dtype": ["<f4"], "shape": [1], "base64": "AAAAAA=="},
        {"shape": [1], "base64": "AAAAAA=="},
        {"dtype": "<f4", "shape": "1", "base64": "AAAAAA=="},
    ],
)
def test_arrays_that_make_no_sense_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"array|base64"):
        loads(json.dumps({"__array__": content}).encode())


@pytest.mark.parametrize("text", ['{"__pickle__": "x"}', '{"__tuple__": 3}', '{"__dict__": [[[], 1]]}', "NaN", "[" * 100_000])
def test_other_tags_constants_and_depths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(text.encode())


def test_a_value_nested_too_deep_is_not_sent() -> None:
    value: Any = []
    for _ in range(100):
        value = [value]
    with pytest.raises(ValueError, match="deeper than 64"):
        dumps(value)
