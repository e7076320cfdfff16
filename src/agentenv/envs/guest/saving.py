"""Episodes as bytes: an environment's own `save`/`load`, and those written here for Gymnasium's classic control and toy text.

Those hold their whole state in plain attributes (numbers, arrays, lists of them), the counters of the standard wrappers and one numpy
random generator, so that reading and setting these is exact. Simulators that keep state elsewhere (MuJoCo, Box2D) are not touched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from agentenv.envs.guest import values
from agentenv.envs.guest.environment import Portable

_PLAIN_MODULES: Final = ("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.")
_NOT_STATE: Final = frozenset(
    {"action_space", "observation_space", "metadata", "spec", "render_mode", "reward_range", "_np_random", "_np_random_seed"}
)
_WRAPPER_STATE: Final = ("_elapsed_steps", "_has_reset")


def portable(environment: Any) -> Portable | None:
    """What saves and loads this environment's episode; None where nothing can."""
    base = getattr(environment, "unwrapped", environment)
    if isinstance(base, Portable):
        return _Wrapped(environment, base) if base is not environment else base
    if type(base).__module__.startswith(_PLAIN_MODULES):
        return _Plain(environment)
    return None


class _Plain:
    """Gymnasium environments whose state is plain attributes."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._base = environment.unwrapped

    def save(self) -> bytes:
        attributes = {name: value for name, value in vars(self._base).items() if name not in _NOT_STATE and is_plain(value)}
        generator = self._base.np_random.bit_generator.state
        return values.dumps({"attributes": attributes, "random": generator, "wrappers": wrapper_state(self._environment)})

    def load(self, state: bytes) -> None:
        saved = values.loads(state)
        for name, value in saved["attributes"].items():
            setattr(self._base, name, value)
        self._base.np_random.bit_generator.state = saved["random"]
        set_wrapper_state(self._environment, saved["wrappers"])


class _Wrapped:
    """A user's environment with `save` and `load` under Gymnasium's wrappers."""

    def __init__(self, environment: Any, base: Portable) -> None:
        self._environment = environment
        self._base = base

    def save(self) -> bytes:
        return values.dumps({"base": self._base.save(), "wrappers": wrapper_state(self._environment)})

    def load(self, state: bytes) -> None:
        saved = values.loads(state)
        self._base.load(saved["base"])
        set_wrapper_state(self._environment, saved["wrappers"])


def is_plain(value: Any) -> bool:
    """Whether `value` is numbers, text, arrays of numbers, and containers of these, so that JSON keeps it whole."""
    if value is None or type(value) in (bool, int, float, str):
        return True
    if type(value) in (list, tuple):
        return all(is_plain(item) for item in value)
    if type(value) is dict:
        return all(is_plain(key) and is_plain(item) for key, item in value.items())
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and values.DTYPE.fullmatch(value.dtype.str) is not None


def wrapper_state(environment: Any) -> list[dict[str, Any]]:
    """The counters of each wrapper, the outermost first."""
    return [{name: vars(layer)[name] for name in _WRAPPER_STATE if name in vars(layer)} for layer in _layers(environment)]


def set_wrapper_state(environment: Any, states: list[Mapping[str, Any]]) -> None:
    """Sets what `wrapper_state` read. Raises ValueError where the wrappers are not the same.

    Gymnasium's passive checker compares the first steps of an episode with each other; in the middle of one it has nothing to compare
    with, so it is told that it has looked already.
    """
    for layer, state in zip(_layers(environment), states, strict=True):
        for name, value in state.items():
            setattr(layer, name, value)
        for name in vars(layer):
            if name.startswith("checked_"):
                setattr(layer, name, True)


def _layers(environment: Any) -> Iterator[Any]:
    while environment is not environment.unwrapped:
        yield environment
        environment = environment.env
