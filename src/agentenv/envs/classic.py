"""`AgentEnvironment`: environments in the form that older agents expect: `reset()` gives a state, `step()` gives (state, reward, done,
info).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from agentenv.config import Config, load
from agentenv.envs.batch import argmax_scores
from agentenv.envs.opening import settings_of, timeouts_of
from agentenv.envs.vector_env import SandboxVectorEnv
from agentenv.errors import AgentEnvError

_TRUNCATED: Final = "TimeLimit.truncated"


class AgentEnvironment:
    """The environment of a configuration, in the classic form.

    `config` is a YAML file's path, a mapping of the same shape, or a loaded `Config`. The state is a batch with one row for each of
    `num_envs` sandboxes (one by default), so that a model's `predict(state)` takes it as it is.

    `step` takes a row of actions for each sandbox or, where actions are discrete, a row of scores (what a network's last layer gives):
    the highest acts, the first of equals. With one sandbox the leading axis may be left out, reward is a float, done a bool and info a
    plain dict, and `reset` begins the next episode. With several, reward and done are arrays, and an ended episode is followed by the
    next at once: its last state is in `info["final_obs"]`.

    A sandbox that fails raises its `InfrastructureError` (`SandboxDied`, `OutOfMemory`, …): its step has no reward, `reset` starts a new
    one. With several sandboxes the others go on: `info["infra_error"]` marks the step of the failed one, which is to be left out.
    """

    def __init__(self, config: str | Path | Mapping[str, Any] | Config, *, num_envs: int = 1, **overrides: Any) -> None:
        self.config = config if isinstance(config, Config) else load(config)
        environment = self.config.environment
        self.num_envs = num_envs
        mode = AutoresetMode.DISABLED if num_envs == 1 else AutoresetMode.SAME_STEP
        arguments: dict[str, Any] = {
            "options": environment.options,
            "settings": settings_of(environment),
            "timeouts": timeouts_of(environment),
            **overrides,
        }
        self.envs = SandboxVectorEnv(environment.name, num_envs, autoreset_mode=mode, **arguments)
        self.observation_space = self.envs.single_observation_space
        self.action_space = self.envs.single_action_space

    def reset(self, *, seed: int | None = None) -> Any:
        """Begins an episode in every sandbox; returns the state, one row each."""
        state, _ = self.envs.reset(seed=seed)
        return state

    def step(self, action: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Acts; returns (next_state, reward, done, info). `info["TimeLimit.truncated"]` tells an episode cut short from one that ended."""
        state, reward, terminated, truncated, info = self.envs.step(self._batched(action))
        if "infra_error" in info and self.num_envs == 1:
            raise self.envs.failure(0) or AgentEnvError(str(info["infra_error"][0]))
        info[_TRUNCATED] = truncated & ~terminated
        done = terminated | truncated
        if self.num_envs > 1:
            return state, reward, done, info
        return state, float(reward[0]), bool(done[0]), _of_one(info)

    def _batched(self, action: Any) -> Any:
        """A batch of actions out of what an agent gave: scores become choices, a single action a batch of one."""
        space, alone = self.action_space, self.num_envs == 1
        if isinstance(space, spaces.Discrete):
            chosen = np.asarray(argmax_scores(action, space, None if alone else self.num_envs))
            return _whole(chosen.reshape(1) if alone and chosen.size == 1 else chosen, space)
        if alone and space.shape is not None and np.shape(action) == space.shape:
            return np.asarray(action)[np.newaxis]
        return action

    def close(self) -> None:
        """Ends the sandboxes; idempotent."""
        self.envs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _whole(choices: NDArray[Any], space: spaces.Discrete[Any]) -> NDArray[Any]:
    """Choices as integers. Raises AgentEnvError for anything that is not exactly one."""
    whole: NDArray[Any] = choices.astype(space.dtype) if choices.dtype.kind in "biuf" else np.empty(0)
    if whole.shape != choices.shape or not (whole == choices).all():
        raise AgentEnvError(f"the action {choices.tolist()} is neither one of {space.n} choices nor a row of {space.n} scores.")
    return whole


def _of_one(info: dict[str, Any]) -> dict[str, Any]:
    """The only lane's values, without the masks that Gymnasium keeps beside batched infos."""
    own = {key: value for key, value in info.items() if f"_{key}" in info or key == _TRUNCATED}
    return {key: _of_one(value) if isinstance(value, dict) else value[0] for key, value in own.items()}
