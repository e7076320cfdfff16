"""How values of a space with a fixed size lie in a frame: the leaves' raw bytes one after the other, in the order in which the space
declares them.

Box, Discrete, MultiBinary, MultiDiscrete and every Dict or Tuple of them have such a layout; each leaf starts at the next multiple of 8
(so that a reader may look at it in place). All other spaces vary in size and travel as JSON (`values`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from agentenv.envs.guest.spaces import Description
from agentenv.envs.guest.values import is_shape
from agentenv.envs.guest.wire import MAX_BODY

FORMATS: Final = {
    "|b1": "?",
    "|i1": "b",
    "|u1": "B",
    "<i2": "h",
    "<u2": "H",
    "<i4": "i",
    "<u4": "I",
    "<i8": "q",
    "<u8": "Q",
    "<f2": "e",
    "<f4": "f",
    "<f8": "d",
}
"""The struct code of each element type."""

ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array in a layout: `path` leads to it through Dict keys and Tuple positions; `offset` and `size` are bytes."""

    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Layout:
    """All leaves of a space, and the bytes that a value of it takes."""

    leaves: tuple[Leaf, ...]
    size: int


def layout_of(description: Description) -> Layout | None:
    """The layout of a described space; None where its values vary in size. Raises ValueError for a description that makes no sense."""
    leaves: list[Leaf] = []
    end = 0
    for found in _leaves(description, (), 0):
        if found is None:
            return None
        path, dtype, shape = found
        if dtype not in FORMATS or not is_shape(list(shape)):
            raise ValueError(f"a space at {path or 'its top'} has the element type {dtype!r} and the shape {shape!r}")
        size = math.prod(shape) * struct.calcsize("<" + FORMATS[dtype])
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        leaves.append(Leaf(path, dtype, shape, offset, size))
        end = offset + size
        if end > MAX_BODY:
            raise ValueError(f"a value of the space takes more than the {MAX_BODY} bytes of a frame")
    return Layout(tuple(leaves), end)


def _leaves(
    description: Description, path: tuple[str | int, ...], depth: int
) -> Iterator[tuple[tuple[str | int, ...], str, tuple[int, ...]] | None]:
    """(path, element type, shape) of each leaf, or a None at the first member whose size varies."""
    if depth > 16:
        raise ValueError("spaces are nested deeper than 16")
    kind = description.get("type")
    if kind == "box":
        yield path, description["dtype"], tuple(description["shape"])
    elif kind == "discrete":
        yield path, description["dtype"], ()
    elif kind == "multi_binary":
        yield path, "|i1", tuple(description["shape"])
    elif kind == "multi_discrete":
        yield path, description["dtype"], nested_shape(description["nvec"])
    elif kind in ("dict", "tuple"):
        for key, member in _members(description):
            yield from _leaves(member, (*path, key), depth + 1)
    elif kind in ("text", "sequence", "graph", "one_of"):
        yield None
    else:
        raise ValueError(f"{kind!r} is no type of space")


def _members(description: Description) -> Iterator[tuple[str | int, Description]]:
    spaces = description["spaces"]
    yield from ((key, member) for key, member in spaces) if description["type"] == "dict" else enumerate(spaces)


def nested_shape(value: Any) -> tuple[int, ...]:
    """The shape of nested lists, as their first elements show it."""
    return (len(value), *nested_shape(value[0])) if isinstance(value, list) and value else ()


def assemble(description: Description, leaves: Iterator[Any]) -> Any:
    """Puts the leaves' values, in order, into the dicts and tuples that the space describes."""
    if description["type"] == "dict":
        return {key: assemble(member, leaves) for key, member in description["spaces"]}
    if description["type"] == "tuple":
        return tuple(assemble(member, leaves) for member in description["spaces"])
    return next(leaves)


def pick(value: Any, path: tuple[str | int, ...]) -> Any:
    """The part of `value` that a leaf's path leads to."""
    for key in path:
        value = value[key]
    return value


_FAMILIES: Final = ("?", "bhilq", "BHILQ", "efd")


def _alike(one: str, other: str) -> bool:
    """Whether two struct codes are of one family (C's long and long long, say): the number of bytes tells the rest."""
    return any(one in family and other in family for family in _FAMILIES)


Writer = Callable[[Any], None]
Reader = Callable[[], Any]


def leaf_writer(leaf: Leaf, buffer: bytearray, start: int) -> Writer:
    """Writes one leaf's value into `buffer`, in which the layout begins at `start`, without numpy.

    Takes anything with the right number of bytes in the buffer protocol, a number, or nested sequences of numbers.
    """
    code = struct.Struct(f"<{leaf.count}{FORMATS[leaf.dtype]}")
    begin, end = start + leaf.offset, start + leaf.offset + leaf.size
    item = FORMATS[leaf.dtype]

    def write(value: Any) -> None:
        if not leaf.shape:
            code.pack_into(buffer, begin, value)
            return
        try:
            view = memoryview(value)
        except TypeError:
            code.pack_into(buffer, begin, *flatten(value, leaf.shape))
            return
        if not _alike(view.format, item) or view.nbytes != leaf.size:
            raise ValueError(f"expected {leaf.count} elements of type {item!r}, got {view.nbytes} bytes of type {view.format!r}")
        buffer[begin:end] = view.cast("B") if view.contiguous else view.tobytes()

    return write


def leaf_reader(leaf: Leaf, buffer: bytearray, start: int) -> Reader:
    """Reads one leaf from `buffer` without numpy: a number, or (nested) lists of numbers."""
    code = struct.Struct(f"<{leaf.count}{FORMATS[leaf.dtype]}")
    begin = start + leaf.offset
    if not leaf.shape:
        return lambda: code.unpack_from(buffer, begin)[0]
    return lambda: fold(code.unpack_from(buffer, begin), leaf.shape)


def flatten(value: Any, shape: tuple[int, ...]) -> list[Any]:
    """Nested sequences of exactly `shape` as one list. Raises ValueError where a length differs."""
    try:
        length = len(value)
    except TypeError:
        raise ValueError(f"expected a sequence of {shape[0]}, got {type(value).__name__}") from None
    if length != shape[0]:
        raise ValueError(f"expected {shape[0]} elements, got {length}")
    if len(shape) == 1:
        return list(value)
    return [item for part in value for item in flatten(part, shape[1:])]


def fold(flat: tuple[Any, ...], shape: tuple[int, ...]) -> list[Any]:
    """The inverse of `flatten`."""
    if len(shape) == 1:
        return list(flat)
    stride = math.prod(shape[1:])
    return [fold(flat[at * stride : (at + 1) * stride], shape[1:]) for at in range(shape[0])]
