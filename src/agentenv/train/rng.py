"""The random generators that a training draws from, as plain values that can be written down and put back.

These are Python's, NumPy's global one (stable-baselines3 shuffles minibatches with it), PyTorch's on each device, and that of the
action space.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import Space

RandomState = dict[str, Any]


def capture(action_space: Space[Any]) -> RandomState:
    """The state of every generator, made of numbers, strings, lists and tensors only."""
    version, numbers, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": {
            **legacy,
            "state": {"key": torch.from_numpy(legacy["state"]["key"].astype(np.int64)), "pos": int(legacy["state"]["pos"])},
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "action_space": action_space.np_random.bit_generator.state,
    }


def restore(state: RandomState, action_space: Space[Any]) -> None:
    """Puts back what `capture` returned. Generators of devices that this machine does not have are left out."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    key = state["numpy"]["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**state["numpy"], "state": {"key": key, "pos": state["numpy"]["state"]["pos"]}})
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    action_space.np_random.bit_generator.state = state["action_space"]


@contextmanager
def preserved(action_space: Space[Any]) -> Iterator[None]:
    """Whatever is drawn inside (an evaluation, say) leaves the training's own random numbers as they were."""
    state = capture(action_space)
    try:
        yield
    finally:
        restore(state, action_space)
