"""Shows a Gymnasium vector environment to stable-baselines3, without losing what either of them means.

Three things differ between the two and are reconciled here:

* stable-baselines3 wants the *next* episode's first observation in the very step that ended the last one, with the last observation of
  the old episode in `info["terminal_observation"]`. Gymnasium offers that as `AutoresetMode.SAME_STEP`; in the other modes the finished
  lanes are reset right here through `reset(options={"reset_mask": …})`, so no learner ever sees Gymnasium's extra, meaningless reset
  step.
* `info["TimeLimit.truncated"]` tells a learner to bootstrap from the terminal observation: it is true exactly for truncated and not
  terminated.
* A lane whose sandbox failed carries `info["infra_error"]`. What its action led to is unknown, so the transition has *no* reward: it
  travels as NaN, which the buffers of `agentenv.train.buffers` leave out, and which would poison (rather than quietly bend) any learner
  that used it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from agentenv.errors import CapabilityError

Observations = NDArray[Any] | dict[str, NDArray[Any]]
LaneInfo = dict[str, Any]
InfraErrorListener = Callable[[int, object], None]


@runtime_checkable
class ResumableLanes(Protocol):
    """A vector environment whose lanes can be written down in the middle of an episode and continued elsewhere."""

    def save(self) -> list[bytes]:
        """The state of every lane, its random generator included; raises `CapabilityError` where the environment has no `save()`."""
        ...

    def load(self, states: list[bytes]) -> object:
        """Puts every lane back into the state written by `save`."""
        ...


class GymnasiumVecEnv(VecEnv):
    """A `gymnasium.vector.VectorEnv` as stable-baselines3's `VecEnv`.

    `infos[i]["episode"]` holds return `r`, length `l` (steps) and, where the environment tells it, the best return possible as
    `optimal`, for each lane `i` that finished an episode. `on_infra_error(lane, error)` is called for each lane whose sandbox failed.
    Steps and resets go through `metered`, where given, which counts them: a wrapper around `envs` that changes nothing.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        *,
        metered: VectorEnv[Any, Any, Any] | None = None,
        on_infra_error: InfraErrorListener | None = None,
    ) -> None:
        self.envs = envs
        self._stepped = envs if metered is None else metered
        self.episodes = 0
        self.infra_errors = 0
        self._on_infra_error = on_infra_error
        self._same_step = AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)) is AutoresetMode.SAME_STEP
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, dtype=np.int64)
        self._optimal = np.full(envs.num_envs, np.nan)
        self._actions: NDArray[Any] | None = None
        self._previous: Observations | None = None
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        """Starts a new episode in every lane, with the seeds given to `seed()` meanwhile. Returns observations of shape (lanes, …)."""
        seeds = None if all(seed is None for seed in self._seeds) else self._seeds
        # Every Gymnasium vector environment takes a list of seeds; only the base class's annotation does not say so.
        observations, infos = self._stepped.reset(seed=cast("Any", seeds))
        self._reset_seeds()
        self._forget(np.ones(self.num_envs, dtype=np.bool_), infos)
        self._previous = _copied(observations)
        return _copied(observations)

    def restart(self, seeds: Mapping[int, int]) -> Any:
        """Begins new episodes in some lanes (lane -> seed) and leaves the others as they are. Returns the observations of all lanes."""
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[list(seeds)] = True
        listed = [seeds.get(lane) for lane in range(self.num_envs)]
        observations, infos = self._stepped.reset(seed=cast("Any", listed), options={"reset_mask": mask})
        self._forget(mask, infos)
        self._previous = _copied(observations)
        return _copied(observations)

    def step_async(self, actions: NDArray[Any]) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, infos = self._stepped.step(self._actions)
        rewards = np.array(rewards, dtype=np.float32)
        self._returns += rewards
        self._lengths += 1
        broken = _mask(infos, "infra_error", self.num_envs)
        done = terminated | truncated | broken
        lanes: list[LaneInfo] = [{} for _ in range(self.num_envs)]
        if done.any():
            rewards[broken] = np.nan
            last = self._last_observations(observations, infos)
            for lane in np.flatnonzero(done):
                if broken[lane]:
                    lanes[lane] = self._broken(int(lane), infos)
                else:
                    lanes[lane] = self._finished(int(lane), last(int(lane)), bool(truncated[lane] and not terminated[lane]), infos)
            observations = self._begin_again(observations, done, infos)
        observations = _copied(observations)
        self._previous = observations
        return observations, rewards, done, lanes

    def save_lanes(self) -> dict[str, Any]:
        """Everything needed to go on from here in another process; `lanes` is None where the environment cannot be saved."""
        states: list[bytes] | None = None
        if isinstance(self.envs, ResumableLanes):
            try:
                states = self.envs.save()
            except CapabilityError:
                states = None
        return {
            "lanes": states,
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "optimal": self._optimal.copy(),
            "episodes": self.episodes,
            "infra_errors": self.infra_errors,
        }

    def load_lanes(self, saved: Mapping[str, Any], observations: Observations) -> bool:
        """Goes on where `save_lanes` stopped, `observations` being the last ones seen. False: it had no lane states, so reset instead."""
        self.episodes, self.infra_errors = saved["episodes"], saved["infra_errors"]
        if saved["lanes"] is None or not isinstance(self.envs, ResumableLanes):
            return False
        self.envs.load(list(saved["lanes"]))
        self._returns[:] = saved["returns"]
        self._lengths[:] = saved["lengths"]
        self._optimal[:] = saved["optimal"]
        self._previous = _copied(observations)
        return True

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        known = {"render_mode": [self.envs.render_mode] * self.num_envs}
        values = known[attr_name] if attr_name in known else list(self._plural("get_attr")(attr_name))
        return [values[lane] for lane in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        values = list(self._plural("get_attr")(attr_name))
        for lane in self._get_indices(indices):
            values[lane] = value
        self._plural("set_attr")(attr_name, values)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        results = list(self._plural("call")(method_name, *method_args, **method_kwargs))
        return [results[lane] for lane in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Wrappers around the environments lie inside the sandboxes, where stable-baselines3's own can never be."""
        return [False for _ in self._get_indices(indices)]

    def _get_indices(self, indices: Any) -> Iterable[int]:
        return super()._get_indices(indices)

    def _plural(self, method: str) -> Callable[..., Iterable[Any]]:
        found = getattr(self.envs, method, None)
        if found is None:
            raise AttributeError(f"{type(self.envs).__name__} has no `{method}`, so single lanes cannot be asked.")
        return cast("Callable[..., Iterable[Any]]", found)

    def _last_observations(self, observations: Any, infos: Mapping[str, Any]) -> Callable[[int], Any]:
        """How to find a finished lane's last observation: in SAME_STEP mode the returned one belongs to the next episode already."""
        if not self._same_step:
            return lambda lane: _row(observations, lane)
        final = infos.get("final_obs")
        return lambda lane: _row(observations, lane) if final is None or final[lane] is None else final[lane]

    def _finished(self, lane: int, observation: Any, truncated: bool, infos: Mapping[str, Any]) -> LaneInfo:
        final = infos.get("final_info") if self._same_step else infos
        info = _lane_info(final or {}, lane)
        self.episodes += 1
        optimal = info.get("optimal_return", self._optimal[lane])
        episode = {"r": float(self._returns[lane]), "l": int(self._lengths[lane]), "t": 0.0}
        if not np.isnan(optimal):
            episode["optimal"] = float(optimal)
        return info | {"terminal_observation": observation, "TimeLimit.truncated": truncated, "episode": episode}

    def _broken(self, lane: int, infos: Mapping[str, Any]) -> LaneInfo:
        """No `episode`: it did not end, it was lost. The observation before the failure is the last one known to be true."""
        error = infos["infra_error"][lane]
        self.infra_errors += 1
        if self._on_infra_error is not None:
            self._on_infra_error(lane, error)
        return {"infra_error": error, "terminal_observation": _row(self._previous, lane), "TimeLimit.truncated": True}

    def _begin_again(self, observations: Any, done: NDArray[np.bool_], infos: Mapping[str, Any]) -> Any:
        if not self._same_step:
            observations, infos = self._stepped.reset(options={"reset_mask": done})
        self._forget(done, infos)
        return observations

    def _forget(self, lanes: NDArray[np.bool_], infos: Mapping[str, Any]) -> None:
        """What was counted of the episodes that have ended; `infos` are those of the ones that begin."""
        self._returns[lanes] = 0.0
        self._lengths[lanes] = 0
        self._optimal[lanes] = np.nan
        self._remember_optimal(infos)

    def _remember_optimal(self, infos: Mapping[str, Any]) -> None:
        known = _mask(infos, "optimal_return", self.num_envs)
        if known.any():
            self._optimal[known] = np.asarray(infos["optimal_return"], dtype=np.float64)[known]


def _mask(infos: Mapping[str, Any], key: str, lanes: int) -> NDArray[np.bool_]:
    """Which lanes have an entry for `key` (Gymnasium keeps a boolean array under `_key` beside the values)."""
    found = infos.get(f"_{key}")
    return np.zeros(lanes, dtype=np.bool_) if found is None else np.asarray(found, dtype=np.bool_)


def _lane_info(infos: Mapping[str, Any], lane: int) -> LaneInfo:
    """One lane's own dictionary out of Gymnasium's dictionary of arrays."""
    own = {}
    for key, values in infos.items():
        mask = None if key.startswith("_") else infos.get(f"_{key}")
        if mask is not None and mask[lane]:
            own[key] = _lane_info(values, lane) if isinstance(values, dict) else values[lane]
    return own


def _row(observations: Any, lane: int) -> Any:
    if isinstance(observations, dict):
        return {key: np.array(value[lane]) for key, value in observations.items()}
    return np.array(observations[lane])


def _copied(observations: Any) -> Any:
    """Learners keep what they were given, so they never get a buffer that the next step writes over."""
    if isinstance(observations, dict):
        return {key: np.array(value) for key, value in observations.items()}
    return np.array(observations)
