"""Small, fast environments for the tests of training: they can be saved, they know their optimum, and they fail on demand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper

from agentenv.errors import CapabilityError


class Switches(gymnasium.Env[Any, Any]):
    """Eight switches: the first four are to become like the last four, one flip a step; +1 nearer, -1 farther, +5 at the end."""

    observation_space = spaces.Box(0.0, 1.0, (8,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(4)
    limit = 12

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bits = self.np_random.integers(0, 2, 8).astype(np.float32)
        if (self.bits[:4] == self.bits[4:]).all():
            self.bits[0] = 1.0 - self.bits[0]
        self.steps = 0
        return self.bits.copy(), {"optimal_return": float((self.bits[:4] != self.bits[4:]).sum() + 5)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        switch = self.chosen(action)
        reward = 1.0 if self.bits[switch] != self.bits[4 + switch] else -1.0
        self.bits[switch] = 1.0 - self.bits[switch]
        self.steps += 1
        done = bool((self.bits[:4] == self.bits[4:]).all())
        return self.bits.copy(), reward + 5.0 * done, done, not done and self.steps >= self.limit, {}

    def chosen(self, action: Any) -> int:
        return int(action)

    def save(self) -> bytes:
        return json.dumps({"bits": self.bits.tolist(), "steps": self.steps, "random": self.np_random.bit_generator.state}).encode()

    def load(self, state: bytes) -> None:
        saved = json.loads(state)
        self.bits = np.array(saved["bits"], dtype=np.float32)
        self.steps = saved["steps"]
        self.np_random.bit_generator.state = saved["random"]


class ScoredSwitches(Switches):
    """The same with continuous actions: a score for each switch, the highest is flipped."""

    action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def chosen(self, action: Any) -> int:
        return int(np.argmax(action))


class KeyedSwitches(Switches):
    """The same with a dictionary of observations."""

    observation_space = spaces.Dict({"now": spaces.Box(0.0, 1.0, (4,), np.float32), "target": spaces.Box(0.0, 1.0, (4,), np.float32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        bits, info = super().reset(seed=seed)
        return {"now": bits[:4], "target": bits[4:]}, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        bits, *rest = super().step(action)
        return ({"now": bits[:4], "target": bits[4:]}, *rest)


class SavableVectorEnv(SyncVectorEnv):
    """Gymnasium's own, whose lanes can be saved."""

    def save(self) -> list[bytes]:
        return [env.unwrapped.save() for env in self.envs]

    def load(self, states: list[bytes]) -> None:
        for env, state in zip(self.envs, states, strict=True):
            env.reset(seed=0)
            env.unwrapped.load(state)


class UnsavableVectorEnv(SyncVectorEnv):
    """Has the methods, but its environment cannot do it."""

    def save(self) -> list[bytes]:
        raise CapabilityError("this environment has no save().")

    def load(self, states: list[bytes]) -> None:
        raise CapabilityError("this environment has no load().")


class Failing(VectorWrapper):
    """Reports an infrastructure fault at given (step, lane) pairs as `SandboxVectorEnv` does: reward 0, truncated, a new episode."""

    def __init__(self, envs: Any, failures: Iterable[tuple[int, int]]) -> None:
        super().__init__(envs)
        self.failures = set(failures)
        self.count = 0

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        for step, lane in self.failures:
            if step != self.count:
                continue
            mask = np.zeros(self.num_envs, dtype=bool)
            mask[lane] = True
            final = infos.get("final_obs", np.full(self.num_envs, None, dtype=object))
            final[lane] = np.full(8, 0.5, dtype=np.float32)
            fresh, begun = self.env.reset(options={"reset_mask": mask})
            observations[lane] = fresh[lane]
            for key in ("optimal_return", "_optimal_return"):
                infos.setdefault(key, np.zeros_like(begun[key]))[lane] = begun[key][lane]
            rewards[lane], terminated[lane], truncated[lane] = 0.0, False, True
            messages = infos.get("infra_error", np.full(self.num_envs, None, dtype=object))
            messages[lane] = "sandbox x died: killed."
            infos |= {"infra_error": messages, "_infra_error": infos.get("_infra_error", np.zeros_like(mask)) | mask, "final_obs": final}
        self.count += 1
        return observations, rewards, terminated, truncated, infos


def lanes(
    kind: Callable[[], gymnasium.Env[Any, Any]] = Switches,
    *,
    vector: type[SyncVectorEnv] = SavableVectorEnv,
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
) -> Callable[[Any, int, Any], SyncVectorEnv]:
    """What `train(make_envs=…)` takes."""
    return lambda _environment, count, _events: vector([kind for _ in range(count)], autoreset_mode=mode)


def settings(algorithm: str = "PPO", **training: Any) -> dict[str, Any]:
    """A configuration for a few hundred steps."""
    hyperparameters = {
        "PPO": {"n_epochs": 2},
        "A2C": {},
        "DQN": {"learning_starts": 40, "buffer_size": 200, "target_update_interval": 32},
        "SAC": {"learning_starts": 40, "buffer_size": 200},
    }[algorithm]
    common = {"algorithm": algorithm, "max_steps": 512, "num_envs": 2, "seed": 3, "batch_size": 32, "eval_episodes": 4}
    given = hyperparameters | {"policy_kwargs": {"net_arch": [16]}} | training.pop("hyperparameters", {})
    if algorithm == "PPO":
        given.setdefault("n_steps", 32)
    return {"environment": {"name": "switches"}, "training": common | training | {"hyperparameters": given}}
