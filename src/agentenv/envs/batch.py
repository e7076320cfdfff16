"""Buffers for stepping many environments at once: every action and every observation of fixed size is written and read in place.

The rows of all lanes lie in one block of memory, so that actions go in and rewards and observations come out by one numpy operation
each, however many lanes there are.
"""

from __future__ import annotations

import socket
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from agentenv.envs.guest import values
from agentenv.envs.guest.codec import Mismatch, conform
from agentenv.envs.guest.layout import Layout, Leaf, assemble, layout_of, pick
from agentenv.envs.guest.spaces import Description
from agentenv.envs.guest.wire import (
    HEADER,
    OBSERVATION_OFFSET,
    EndOfStream,
    Kind,
    WireError,
    frame,
    parse_header,
    receive_exactly,
    split_transition,
)
from agentenv.envs.stream import decode, fault
from agentenv.errors import AgentEnvError, ProtocolError

_SPARE: Final = 512
"""Room in a row for an info, so that a small one takes no second read (bytes)."""


def _views(block: bytearray, layout: Layout, lanes: int, stride: int, start: int) -> list[NDArray[Any]]:
    """For each leaf one array of shape (lanes, *leaf.shape) that looks into the rows of `block`."""
    return [_view(block, leaf, lanes, stride, start) for leaf in layout.leaves]


def _view(block: bytearray, leaf: Leaf, lanes: int, stride: int, start: int) -> NDArray[Any]:
    dtype = np.dtype(leaf.dtype)
    inner = np.empty(leaf.shape, dtype).strides
    return np.ndarray((lanes, *leaf.shape), dtype, buffer=block, offset=start + leaf.offset, strides=(stride, *inner))


class ActionRows:
    """The STEP frames of all lanes. `frames[i]` is what to send to lane i after `fill`."""

    def __init__(self, description: Description, lanes: int) -> None:
        self._description = description
        self._lanes = lanes
        self._layout = layout_of(description)
        self.frames: list[bytes | memoryview] = []
        self._direct: NDArray[Any] | None = None
        if self._layout is not None:
            stride = -(-(HEADER.size + self._layout.size) // 8) * 8
            block = bytearray(stride * lanes)
            for lane in range(lanes):
                HEADER.pack_into(block, lane * stride, self._layout.size, Kind.STEP, 0, 0)
                self.frames.append(memoryview(block)[lane * stride : lane * stride + HEADER.size + self._layout.size])
            self._leaves = _views(block, self._layout, lanes, stride, HEADER.size)
            if len(self._leaves) == 1 and not self._layout.leaves[0].path:
                self._direct = self._leaves[0]

    def fill(self, actions: Any, space: spaces.Space[Any]) -> None:
        """Takes a batch of actions of the batched `space`. Raises AgentEnvError for one that is not of its shape and type."""
        try:
            if self._direct is not None:
                _place(self._direct, actions)
            elif self._layout is not None:
                for leaf, view in zip(self._layout.leaves, self._leaves, strict=True):
                    _place(view, pick(actions, leaf.path))
            else:
                self.frames = [frame(Kind.STEP, values.dumps(action)) for action in iterate(space, actions)]
                if len(self.frames) != self._lanes:
                    raise ValueError(f"expected {self._lanes} actions, got {len(self.frames)}")
        except (ValueError, TypeError, KeyError, IndexError, WireError) as problem:
            raise AgentEnvError(f"the actions do not fit {space}: {problem}") from problem

    def fill_one(self, action: Any, space: spaces.Space[Any]) -> None:
        """Takes the action of the only lane."""
        if self._direct is not None:
            try:
                _place(self._direct[0, ...], action)
            except (ValueError, TypeError) as problem:
                raise AgentEnvError(f"the action does not fit {space}: {problem}") from problem
            return
        try:
            if self._layout is not None:
                for leaf, view in zip(self._layout.leaves, self._leaves, strict=True):
                    _place(view[0, ...], pick(action, leaf.path))
            else:
                self.frames = [frame(Kind.STEP, values.dumps(action))]
        except (ValueError, TypeError, KeyError, IndexError, WireError) as problem:
            raise AgentEnvError(f"the action does not fit {space}: {problem}") from problem


def _place(view: NDArray[Any], value: Any) -> None:
    array = np.asarray(value)
    if array.shape != view.shape:
        raise ValueError(f"expected the shape {view.shape}, got {array.shape}")
    np.copyto(view, array, casting="same_kind")


class AnswerRows:
    """The TRANSITION frames of all lanes. `slots[i]` is where to receive lane i's; `rewards` looks into them."""

    def __init__(self, description: Description, space: spaces.Space[Any], lanes: int) -> None:
        self._description = description
        self._space = space
        self._lanes = lanes
        self._layout = layout_of(description)
        self._values: list[Any] = [None] * lanes
        size = self._layout.size if self._layout is not None else 0
        self._stride = stride = -(-(OBSERVATION_OFFSET + size + _SPARE) // 8) * 8
        self._block = block = bytearray(stride * lanes)
        self.slots = [memoryview(block)[lane * stride : (lane + 1) * stride] for lane in range(lanes)]
        self.rewards: NDArray[np.float64] = np.ndarray((lanes,), "<f8", buffer=block, offset=HEADER.size, strides=(stride,))
        self._heads: NDArray[np.uint64] = np.ndarray((lanes,), "<u8", buffer=block, strides=(stride,))
        self.plain_size = OBSERVATION_OFFSET + size if self._layout is not None else -1
        """The bytes of an answer without an info, where observations have a fixed size."""
        self._plain_heads = HEADER.pack(OBSERVATION_OFFSET - HEADER.size + size, Kind.TRANSITION, 0, 0) * lanes
        heads = (HEADER.pack(OBSERVATION_OFFSET - HEADER.size + size, Kind.TRANSITION, flags, 0) for flags in range(4))
        self._flags = {head: flags for flags, head in enumerate(heads)}
        self._leaves = _views(block, self._layout, lanes, stride, OBSERVATION_OFFSET) if self._layout is not None else []
        self._direct = self._leaves[0] if self._layout is not None and len(self._leaves) == 1 and not self._layout.leaves[0].path else None

    def all_plain(self) -> bool:
        """Whether the rows (each received with exactly `plain_size` bytes) are all transitions that neither end an episode nor carry an
        info.
        """
        return self._heads.tobytes() == self._plain_heads

    def finish(self, lane: int, count: int, stream: socket.socket, environment: str) -> tuple[int, dict[str, Any]]:
        """Completes and checks lane's answer, of which `count` bytes have been received: (flags, info).

        Raises `EnvironmentFault` for an ERROR, `ProtocolError` for what the protocol does not allow, OSError when the stream breaks.
        """
        if count == self.plain_size and (flags := self._flags.get(bytes(self.slots[lane][: HEADER.size]))) is not None:
            return flags, {}
        try:
            return self._finish(lane, count, stream, environment)
        except (WireError, Mismatch) as problem:
            raise ProtocolError(f"the environment broke the step protocol: {problem}.") from problem

    def _finish(self, lane: int, count: int, stream: socket.socket, environment: str) -> tuple[int, dict[str, Any]]:
        if count == 0:
            raise EndOfStream("the environment hung up")
        slot = self.slots[lane]
        if count < HEADER.size:
            receive_exactly(stream, slot[count : HEADER.size])
            count = HEADER.size
        length, kind, flags = parse_header(slot)
        end = HEADER.size + length
        if kind not in (Kind.TRANSITION, Kind.ERROR):
            raise WireError(f"it answered with a {kind.name}")
        if count > end:
            raise WireError(f"it sent {count - end} bytes that nobody asked for")
        body = slot[HEADER.size : end] if end <= len(slot) else self._longer(slot, length)
        receive_exactly(stream, body[count - HEADER.size :])
        if kind is Kind.ERROR:
            raise fault(environment, body)
        size = None if self._layout is None else self._layout.size
        reward, observation, extra = split_transition(body, size)
        self.rewards[lane] = reward
        if self._layout is None:
            self._values[lane] = conform(self._description, decode(observation))
        elif end > len(slot):
            slot[OBSERVATION_OFFSET : self.plain_size] = observation
        info = decode(extra) if extra else {}
        if not isinstance(info, dict):
            raise WireError(f"its info is a {type(info).__name__}, not an object")
        return flags, info

    def _longer(self, slot: memoryview, length: int) -> memoryview:
        body = memoryview(bytearray(length))
        received = len(slot) - HEADER.size
        body[:received] = slot[HEADER.size :]
        return body

    def keep(self, lane: int, other: AnswerRows) -> None:
        """Takes lane's observation from `other` rows, and no reward."""
        self.slots[lane][:] = other.slots[lane]
        self._values[lane] = other._values[lane]
        self.rewards[lane] = 0.0

    def one(self, lane: int) -> Any:
        """A copy of one lane's observation."""
        if self._direct is not None:
            return self._direct[lane].copy() if self._direct.ndim > 1 else self._direct[lane]
        if self._layout is None:
            return self._values[lane]
        return assemble(self._description, iter([view[lane].copy() if view.ndim > 1 else view[lane] for view in self._leaves]))

    def all(self) -> Any:
        """A copy of all lanes' observations, in the batched space."""
        if self._direct is not None:
            return self._direct.copy()
        if self._layout is None:
            empty: Any = create_empty_array(self._space, self._lanes, fn=np.zeros)
            return concatenate(self._space, self._values, empty)
        return assemble(self._description, iter([view.copy() for view in self._leaves]))


def argmax_scores(actions: Any, space: spaces.Discrete[Any], lanes: int | None) -> Any:
    """Scores for the choices of `space` become the choice with the highest (the first of equals); anything else stays as it is.

    `lanes` is the number of rows, None for a single environment (which also takes one row). Raises AgentEnvError for a score that is NaN.
    """
    if not hasattr(actions, "__len__"):
        return actions
    scores, choices = np.asarray(actions), int(space.n)
    shapes = ((choices,), (1, choices)) if lanes is None else ((lanes, choices),)
    if scores.shape not in shapes:
        return actions
    if scores.dtype.kind == "f" and np.isnan(scores).any():
        raise AgentEnvError("the scores of an action hold a NaN, so that none is the highest.")
    chosen = scores.reshape(-1, choices).argmax(axis=1) + space.start
    return int(chosen[0]) if lanes is None else chosen
