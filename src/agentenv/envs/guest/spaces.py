"""Spaces as plain data: what an observation or an action may be, said without numpy or gymnasium.

Each class is one of Gymnasium's spaces with the same meaning. `describe` turns them, or Gymnasium's own, into the JSON of the hello
(docs/step-protocol.md); the host builds the Gymnasium space from that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

DTYPES: Final = {
    "bool": "|b1",
    "int8": "|i1",
    "uint8": "|u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
}
"""Names of element types and how the wire writes them."""

_CHARACTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Box:
    """Arrays of `shape`, each element between `low` and `high` (numbers, or nested lists of that shape)."""

    low: Any
    high: Any
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Discrete:
    """The integers start, start + 1, … start + n - 1."""

    n: int
    start: int = 0


@dataclass(frozen=True)
class MultiBinary:
    """Arrays of zeros and ones."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class MultiDiscrete:
    """A vector of integers, each from its own range 0 … nvec[i] - 1."""

    nvec: tuple[int, ...]


@dataclass(frozen=True)
class Text:
    """Strings of `min_length` to `max_length` characters out of `charset`."""

    max_length: int
    min_length: int = 1
    charset: str = _CHARACTERS


@dataclass(frozen=True)
class Dict:
    """A mapping with a value of its own space under each key."""

    spaces: Mapping[str, Space]


@dataclass(frozen=True)
class Tuple:
    """A tuple with one value of each space."""

    spaces: tuple[Space, ...]


@dataclass(frozen=True)
class Sequence:
    """Any number of values of one space."""

    space: Space
    stacked: bool = field(default=False)


Space: TypeAlias = "Box | Discrete | MultiBinary | MultiDiscrete | Text | Dict | Tuple | Sequence | Any"
"""One of the classes above, or a space of Gymnasium's."""

Description: TypeAlias = dict[str, Any]


def describe(space: Space) -> Description:
    """The space as data that `values.dumps` writes. Raises TypeError for a space that has no description."""
    if isinstance(space, Box):
        return {"type": "box", "dtype": _dtype(space.dtype), "shape": list(space.shape), "low": space.low, "high": space.high}
    if isinstance(space, Discrete):
        return {"type": "discrete", "dtype": "<i8", "n": space.n, "start": space.start}
    if isinstance(space, MultiBinary):
        return {"type": "multi_binary", "shape": list(space.shape)}
    if isinstance(space, MultiDiscrete):
        return {"type": "multi_discrete", "dtype": "<i8", "nvec": list(space.nvec), "start": [0] * len(space.nvec)}
    if isinstance(space, Text):
        return {"type": "text", "min_length": space.min_length, "max_length": space.max_length, "charset": space.charset}
    if isinstance(space, Dict):
        return {"type": "dict", "spaces": [[key, describe(member)] for key, member in space.spaces.items()]}
    if isinstance(space, Tuple):
        return {"type": "tuple", "spaces": [describe(member) for member in space.spaces]}
    if isinstance(space, Sequence):
        return {"type": "sequence", "space": describe(space.space), "stacked": space.stacked}
    return _describe_gymnasium(space)


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise TypeError(f"{name!r} is no element type of a space; use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def is_gymnasium(space: Space) -> bool:
    """Whether this is one of Gymnasium's spaces."""
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(space, gymnasium.spaces.Space)


def _describe_gymnasium(space: Any) -> Description:
    if not is_gymnasium(space):
        raise TypeError(f"{type(space).__name__} is not a space; use one of agentenv.envs.spaces or of gymnasium.spaces")
    spaces = sys.modules["gymnasium.spaces"]
    return _describe_numeric(space, spaces) or _describe_composite(space, spaces)


def _describe_numeric(space: Any, spaces: Any) -> Description | None:
    if isinstance(space, spaces.Box):
        low, high = _shortened(space.low), _shortened(space.high)
        return {"type": "box", "dtype": _element(space.dtype), "shape": list(space.shape), "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"type": "discrete", "dtype": _element(space.dtype), "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "multi_binary", "shape": list(space.shape)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "multi_discrete", "dtype": _element(space.dtype), "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    return None


def _describe_composite(space: Any, spaces: Any) -> Description:
    if isinstance(space, spaces.Text):
        charset = "".join(space.character_list)
        return {"type": "text", "min_length": space.min_length, "max_length": space.max_length, "charset": charset}
    if isinstance(space, spaces.Dict):
        return {"type": "dict", "spaces": [[key, describe(member)] for key, member in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "tuple", "spaces": [describe(member) for member in space.spaces]}
    if isinstance(space, spaces.Sequence):
        return {"type": "sequence", "space": describe(space.feature_space), "stacked": bool(space.stack)}
    if isinstance(space, spaces.Graph):
        edge = None if space.edge_space is None else describe(space.edge_space)
        return {"type": "graph", "node": describe(space.node_space), "edge": edge}
    if isinstance(space, spaces.OneOf):
        return {"type": "one_of", "spaces": [describe(member) for member in space.spaces]}
    raise TypeError(f"a space of the class {type(space).__name__} cannot be described to the host; use Gymnasium's own classes")


def _element(dtype: Any) -> str:
    return _dtype(dtype.name)


def _shortened(bound: Any) -> Any:
    """One number where all elements are the same (Python's floats hold a float32 exactly), else the array itself."""
    flat = bound.reshape(-1)
    return flat[0].item() if flat.size and (flat == flat[0]).all() else bound
