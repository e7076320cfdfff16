"""Gymnasium's space from an environment's description of it (docs/step-protocol.md), with everything checked: it comes from a sandbox."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from agentenv.envs.guest.layout import layout_of
from agentenv.envs.guest.spaces import Description


def build(description: Description) -> spaces.Space[Any]:
    """The space. Raises ValueError for a description that makes no sense, or whose values would not fit into a frame."""
    try:
        space = _build(description, 0)
        layout_of(description)
    except (KeyError, TypeError, AttributeError, AssertionError, IndexError, OverflowError) as problem:
        raise ValueError(f"the description of a space makes no sense: {type(problem).__name__}: {problem}") from problem
    return space


def _build(description: Description, depth: int) -> spaces.Space[Any]:
    if depth > 16:
        raise ValueError("spaces are nested deeper than 16")
    kind = description["type"]
    if kind == "dict":
        members = [(str(key), _build(member, depth + 1)) for key, member in description["spaces"]]
        space = spaces.Dict(dict(members))
        space.spaces = dict(members)
        return space
    if kind in ("tuple", "one_of"):
        parts = [_build(member, depth + 1) for member in description["spaces"]]
        return spaces.Tuple(parts) if kind == "tuple" else spaces.OneOf(parts)
    if kind == "sequence":
        return spaces.Sequence(_build(description["space"], depth + 1), stack=bool(description["stacked"]))
    if kind == "graph":
        node, edge = description["node"], description["edge"]
        return spaces.Graph(_build(node, depth + 1), None if edge is None else _build(edge, depth + 1))
    if kind == "text":
        return spaces.Text(int(description["max_length"]), min_length=int(description["min_length"]), charset=str(description["charset"]))
    return _build_numeric(description)


def _build_numeric(description: Description) -> spaces.Space[Any]:
    layout_of(description)
    kind = description["type"]
    if kind == "multi_binary":
        sizes = [int(size) for size in description["shape"]]
        return spaces.MultiBinary(sizes[0] if len(sizes) == 1 else sizes)
    dtype: np.dtype[Any] = np.dtype(description["dtype"])
    if kind == "box":
        shape = tuple(description["shape"])
        return spaces.Box(_bound(description["low"], shape, dtype), _bound(description["high"], shape, dtype), shape, dtype.type)
    if kind == "discrete":
        return spaces.Discrete(int(description["n"]), start=int(description["start"]), dtype=dtype.type)
    nvec: NDArray[Any] = np.asarray(description["nvec"], dtype=dtype)
    start: NDArray[Any] = np.asarray(description["start"], dtype=dtype)
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _bound(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """A bound of a Box: one number for all elements, or an array (nested lists) of the space's shape."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"a bound of a box is {value!r}")
    if array.dtype.kind == "f" and dtype.kind != "f":
        raise ValueError(f"a box of {dtype.name} has the bound {value!r}")
    return np.broadcast_to(array, shape).astype(dtype)
