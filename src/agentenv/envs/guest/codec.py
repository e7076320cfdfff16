"""Moves values between an environment and the frames' buffers: raw bytes where the space has a layout, else JSON."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from agentenv.envs.guest.layout import Leaf, Reader, Writer, assemble, layout_of, leaf_reader, leaf_writer, pick
from agentenv.envs.guest.spaces import Description


class Mismatch(ValueError):
    """A value does not fit the space that the environment has declared."""


def observation_writer(description: Description, buffer: bytearray, start: int) -> Writer | None:
    """A function that writes an observation of this space into `buffer` from `start` on; None where observations vary in size.

    It raises `Mismatch` for a value of another shape or type.
    """
    layout = layout_of(description)
    if layout is None:
        return None
    writers = [(leaf.path, _writer(leaf, buffer, start)) for leaf in layout.leaves]
    if len(writers) == 1 and not writers[0][0]:
        return _explained(writers[0][1], "the observation")

    def write(value: Any) -> None:
        for path, write_leaf in writers:
            write_leaf(pick(value, path))

    return _explained(write, "the observation")


def action_reader(description: Description, buffer: bytearray, start: int, *, numpy_scalars: bool) -> Reader | None:
    """A function that reads an action of this space from `buffer`, a copy of its own; None where actions vary in size.

    `numpy_scalars`: a lone number is numpy's, as Gymnasium's spaces sample it, and not Python's.
    """
    layout = layout_of(description)
    if layout is None:
        return None
    readers = [_reader(leaf, buffer, start, numpy_scalars) for leaf in layout.leaves]
    if len(readers) == 1 and not layout.leaves[0].path:
        return readers[0]
    return lambda: assemble(description, iter([read() for read in readers]))


def _explained(write: Writer, what: str) -> Callable[[Any], None]:
    def checked(value: Any) -> None:
        try:
            write(value)
        except (ValueError, TypeError, KeyError, IndexError, struct.error) as problem:
            raise Mismatch(f"{what} does not fit the declared space: {problem}") from problem

    return checked


def array_view(description: Description, buffer: bytearray, start: int) -> Any:
    """An array that looks into `buffer`, into which observations of this space can be assigned; None where they are no single array."""
    numpy, layout = sys.modules.get("numpy"), layout_of(description)
    if numpy is None or layout is None or len(layout.leaves) != 1 or layout.leaves[0].path or not layout.leaves[0].shape:
        return None
    return _view(numpy, layout.leaves[0], buffer, start)


def _view(numpy: Any, leaf: Leaf, buffer: bytearray, start: int) -> Any:
    return numpy.frombuffer(buffer, dtype=leaf.dtype, count=leaf.count, offset=start + leaf.offset).reshape(leaf.shape)


def _writer(leaf: Leaf, buffer: bytearray, start: int) -> Writer:
    numpy = sys.modules.get("numpy")
    if numpy is None or not leaf.shape:
        return leaf_writer(leaf, buffer, start)
    view = _view(numpy, leaf, buffer, start)
    shape = leaf.shape

    def write(value: Any) -> None:
        array = value if isinstance(value, numpy.ndarray) else numpy.asarray(value)
        if array.shape != shape:
            raise ValueError(f"expected the shape {shape}, got {array.shape}")
        view[...] = array

    return write


def _reader(leaf: Leaf, buffer: bytearray, start: int, numpy_scalars: bool) -> Reader:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (leaf.shape or numpy_scalars):
        return leaf_reader(leaf, buffer, start)
    view = _view(numpy, leaf, buffer, start)
    read: Reader = view.copy if leaf.shape else partial(view.__getitem__, ())
    return read


def conform(description: Description, value: Any) -> Any:
    """A decoded JSON value in the exact form that Gymnasium's space of this description contains.

    Arrays get their element type, dicts the declared order, graphs become `GraphInstance`. Raises `Mismatch` where it cannot.
    """
    try:
        return _conform(description, value)
    except (ValueError, TypeError, KeyError, IndexError) as problem:
        raise Mismatch(f"a value does not fit the declared space: {problem}") from problem


def _conform(description: Description, value: Any) -> Any:
    kind = description["type"]
    if kind == "dict":
        return {key: _conform(member, value[key]) for key, member in description["spaces"]}
    if kind == "tuple":
        return tuple(_conform(member, item) for member, item in zip(description["spaces"], value, strict=True))
    if kind == "one_of":
        index = int(value[0])
        return index, _conform(description["spaces"][index], value[1])
    if kind == "sequence" and not description["stacked"]:
        return tuple(_conform(description["space"], item) for item in value)
    if kind == "graph":
        from gymnasium.spaces import GraphInstance

        return GraphInstance(*value)
    if kind == "text":
        if not isinstance(value, str):
            raise ValueError(f"expected text, got {type(value).__name__}")
        return value
    if kind == "sequence":
        return value
    return _conform_number(description, value)


def _conform_number(description: Description, value: Any) -> Any:
    layout = layout_of(description)
    numpy = sys.modules.get("numpy")
    if numpy is None or layout is None:
        return value
    leaf = layout.leaves[0]
    array = numpy.asarray(value, dtype=leaf.dtype)
    if array.shape != leaf.shape:
        raise ValueError(f"expected the shape {leaf.shape}, got {array.shape}")
    return array if leaf.shape else array[()]
