"""Checkpoints: everything that a training needs to go on exactly where it was, in one file that appears whole or not at all.

A checkpoint holds numbers, strings, lists, dictionaries and tensors only, and is read back as such (`torch.load(weights_only=True)`):
loading one never runs code. It is taken between two updates, when a rollout buffer is empty; a replay buffer is part of it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.distributions import StateDependentNoiseDistribution

from agentenv.errors import AgentEnvError, NotFound
from agentenv.train import rng
from agentenv.train.vec_env import GymnasiumVecEnv

FORMAT = 1
COUNTERS = ("num_timesteps", "_n_updates", "_episode_num", "_n_calls", "exploration_rate", "_current_progress_remaining")
REPLAY_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
EXPLORATION = ("exploration_mat", "exploration_matrices")


@dataclass(frozen=True, slots=True)
class Resumed:
    """What `restore` found: the step it stands at, the pipeline's own notes, and whether the episodes under way go on too."""

    step: int
    notes: Mapping[str, Any]
    exact: bool


def capture(model: BaseAlgorithm, envs: GymnasiumVecEnv, notes: Mapping[str, Any], *, in_rollout: bool = False) -> dict[str, Any]:
    """The whole state of a training, `notes` being the pipeline's own (plain values).

    `in_rollout`: at the start of a rollout, and not after the last update.
    """
    _, tensors = model._get_torch_save_params()
    return {
        "format": FORMAT,
        "algorithm": type(model).__name__,
        "parameters": model.get_parameters(),
        "tensors": {name: getattr(model, name).detach().clone() for name in tensors if getattr(model, name, None) is not None},
        "counters": {name: getattr(model, name) for name in COUNTERS if hasattr(model, name)},
        "last_observations": _to_tensors(model._last_obs),
        "last_episode_starts": _to_tensors(model._last_episode_starts),
        "episodes": [dict(episode) for episode in model.ep_info_buffer or ()],
        "successes": [float(success) for success in model.ep_success_buffer or ()],
        "replay": _replay_state(getattr(model, "replay_buffer", None)),
        "lanes": _lanes_state(envs),
        "random": rng.capture(model.action_space),
        "exploration": _exploration_state(model) if in_rollout else None,
        "notes": dict(notes),
    }


def write(state: Mapping[str, Any], path: Path) -> None:
    """Writes next to `path`, flushes to the disk, then renames: a crash leaves the old file or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        torch.save(dict(state), file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read(path: Path) -> dict[str, Any]:
    """The state in `path`. Raises `NotFound` where there is none, `AgentEnvError` where it is no checkpoint of this format."""
    if not path.is_file():
        raise NotFound(f"there is no checkpoint {path}.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise AgentEnvError(f"{path} cannot be read as a checkpoint: {error}", remedy="Use another of the run's checkpoints.") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise AgentEnvError(f"{path} is no checkpoint of format {FORMAT}.", remedy="Use the version of AgentENV that wrote it.")
    return state


def load_parameters(model: BaseAlgorithm, state: Mapping[str, Any]) -> None:
    """Puts the networks and optimisers of a checkpoint into `model`. Raises `AgentEnvError` where they have another shape."""
    try:
        model.set_parameters(state["parameters"], exact_match=True)
    except (RuntimeError, ValueError, KeyError) as error:
        raise AgentEnvError(
            f"the checkpoint does not fit the network that the configuration describes: {error}",
            remedy="Resume with the configuration of the run itself (its manifest.json).",
        ) from error
    for name, tensor in state["tensors"].items():
        getattr(model, name).data = tensor.to(model.device)


def restore(model: BaseAlgorithm, envs: GymnasiumVecEnv, state: Mapping[str, Any]) -> Resumed:
    """Makes `model` and `envs`, freshly built from the same configuration, what they were when `state` was captured.

    Where the environment cannot be saved, new episodes begin instead, with seeds that depend on the step (`exact` is False).
    """
    load_parameters(model, state)
    for name, value in state["counters"].items():
        setattr(model, name, value)
    model.ep_info_buffer = deque(state["episodes"], maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(state["successes"], maxlen=model._stats_window_size)
    _restore_replay(getattr(model, "replay_buffer", None), state["replay"])
    observations = _to_arrays(state["last_observations"])
    exact = _restore_lanes(envs, state["lanes"], observations)
    if exact:
        model._last_obs = observations
        model._last_episode_starts = _to_arrays(state["last_episode_starts"])
    else:
        model._last_obs = None
        envs.seed((int(model.seed or 0) + model.num_timesteps) % 2**31)
    rng.restore(state["random"], model.action_space)
    return Resumed(int(model.num_timesteps), state["notes"], exact)


def restore_randomness(model: BaseAlgorithm, state: Mapping[str, Any]) -> None:
    """Puts back once more what is random, at the start of the first rollout after `restore`.

    With state-dependent exploration (gSDE) the learner draws new noise just before that moment, which is the one that checkpoints are of.
    """
    noise, saved = _exploration(model), state.get("exploration")
    if noise is not None and saved is not None:
        rng.restore(state["random"], model.action_space)
        noise.exploration_mat, noise.exploration_matrices = (saved[name].to(model.device) for name in EXPLORATION)


def fingerprint(model: BaseAlgorithm) -> str:
    """SHA-256 (hexadecimal) of the policy's parameters, equal exactly when every bit of them is."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _exploration(model: BaseAlgorithm) -> StateDependentNoiseDistribution | None:
    """The distribution that holds the noise of the rollout under way, where actions are drawn with gSDE (Raffin et al., 2021)."""
    found = getattr(getattr(model, "actor", model.policy), "action_dist", None)
    return found if isinstance(found, StateDependentNoiseDistribution) else None


def _exploration_state(model: BaseAlgorithm) -> dict[str, torch.Tensor] | None:
    noise = _exploration(model)
    return None if noise is None else {name: getattr(noise, name).detach().clone() for name in EXPLORATION}


def _replay_state(buffer: ReplayBuffer | None) -> dict[str, Any] | None:
    if buffer is None:
        return None
    arrays = {name: _filled(getattr(buffer, name), buffer.size()) for name in REPLAY_ARRAYS if hasattr(buffer, name)}
    return {"pos": buffer.pos, "full": buffer.full, "arrays": _to_tensors(arrays)}


def _restore_replay(buffer: ReplayBuffer | None, state: Mapping[str, Any] | None) -> None:
    if buffer is None or state is None:
        return
    buffer.pos, buffer.full = state["pos"], state["full"]
    for name, values in _to_arrays(state["arrays"]).items():
        _fill(getattr(buffer, name), values)


def _lanes_state(envs: GymnasiumVecEnv) -> dict[str, Any]:
    saved = envs.save_lanes()
    if saved["lanes"] is not None:
        saved["lanes"] = [torch.frombuffer(bytearray(lane), dtype=torch.uint8) if lane else torch.empty(0) for lane in saved["lanes"]]
    return {key: _to_tensors(value) for key, value in saved.items()}


def _restore_lanes(envs: GymnasiumVecEnv, state: Mapping[str, Any], observations: Any) -> bool:
    saved = {key: _to_arrays(value) for key, value in state.items()}
    if saved["lanes"] is not None:
        saved["lanes"] = [lane.numpy().tobytes() for lane in saved["lanes"]]
    return envs.load_lanes(saved, observations)


def _filled(values: Any, size: int) -> Any:
    """Only the rows that hold something: an almost empty buffer of a million makes a small checkpoint."""
    return {key: value[:size] for key, value in values.items()} if isinstance(values, dict) else values[:size]


def _fill(target: Any, values: Any) -> None:
    if isinstance(target, dict):
        for key, value in values.items():
            target[key][: len(value)] = value
    else:
        target[: len(values)] = values


def _to_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    if isinstance(value, dict):
        return {key: _to_tensors(item) for key, item in value.items()}
    return value


def _to_arrays(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: _to_arrays(item) for key, item in value.items()}
    return value
