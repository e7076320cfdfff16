"""From a configuration to a learner, and what is refused on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.train.doubles import KeyedSwitches, ScoredSwitches, Switches, lanes, settings

from agentenv.config import load
from agentenv.errors import CapabilityError, ConfigError
from agentenv.train import GymnasiumVecEnv, algorithm, buffers
from agentenv.train.checkpoint import fingerprint
from agentenv.train.learner import Built, build, use_threads


def built(name: str = "PPO", kind: Any = Switches, seed: int = 0, **training: Any) -> Built:
    section = load(settings(name, **training)).training
    assert section is not None
    return build(algorithm(name), section, GymnasiumVecEnv(lanes(kind)(None, 2, None)), seed)


def test_the_same_seed_gives_the_same_parameters() -> None:
    assert fingerprint(built(seed=1).model) == fingerprint(built(seed=1).model)
    assert fingerprint(built(seed=1).model) != fingerprint(built(seed=2).model)


def test_hyperparameters_reach_the_learner() -> None:
    model: Any = built(
        hyperparameters={"gamma": 0.5, "policy_kwargs": {"net_arch": [4], "activation_fn": "relu", "optimizer_class": "AdamW"}}
    ).model
    assert model.gamma == 0.5
    assert isinstance(model.policy.optimizer, torch.optim.AdamW)
    assert isinstance(model.policy.mlp_extractor.policy_net[1], torch.nn.ReLU)
    assert model.policy.mlp_extractor.policy_net[0].out_features == 4


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"gama": 0.9}, "PPO has no such hyperparameter; did you mean gamma"),
        ({"learning_rate": 0.1}, "write it as `training.learning_rate`"),
        ({"seed": 1}, "write it as `training.seed`"),
        ({"verbose": 1}, "has no such hyperparameter"),
        ({"policy_kwargs": [1]}, "is no mapping"),
        ({"policy_kwargs": {"activation_fn": "swoosh"}}, "'swoosh' is no known activation; write one of relu, tanh"),
        ({"policy_kwargs": {"optimizer_class": "Linear"}}, "'Linear' is no optimiser of torch.optim"),
        ({"policy_kwargs": {"net_ark": [4]}}, "PPO refuses these values"),
        ({"gamma": "high"}, "gamma: 'high' is no number; the default is 0.99"),
        ({"normalize_advantage": "yes"}, "'yes' is no truth value; the default is True"),
        ({"policy": "NoPolicy"}, "PPO refuses these values"),
    ],
)
def test_a_hyperparameter_that_does_not_exist_or_fit_is_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=r"training\.hyperparameters") as caught:
        built(hyperparameters=given)
    assert sentence in str(caught.value)


def test_each_learner_gets_buffers_that_know_failures() -> None:
    kinds = {
        ("PPO", Switches): buffers.SandboxRolloutBuffer,
        ("PPO", KeyedSwitches): buffers.SandboxDictRolloutBuffer,
        ("DQN", Switches): buffers.SandboxReplayBuffer,
        ("DQN", KeyedSwitches): buffers.SandboxDictReplayBuffer,
        ("SAC", ScoredSwitches): buffers.SandboxReplayBuffer,
    }
    for (name, kind), expected in kinds.items():
        model: Any = built(name, kind).model
        assert type(getattr(model, "rollout_buffer", None) or model.replay_buffer) is expected


def test_returns_over_several_steps_are_for_array_observations() -> None:
    model: Any = built("DQN", hyperparameters={"n_steps": 3, "gamma": 0.8}).model
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (3, 0.8)
    with pytest.raises(ConfigError, match="n_steps: returns over several steps need array observations"):
        built("DQN", KeyedSwitches, hyperparameters={"n_steps": 3})


def test_a_schedule_reaches_the_optimiser() -> None:
    found = built(learning_rate={"schedule": "linear", "initial": 0.01}, max_steps=128, hyperparameters={"n_epochs": 1})
    rates: list[float] = []
    optimiser: Any = found.model.policy.optimizer
    step = optimiser.step
    optimiser.step = lambda *arguments: (rates.append(optimiser.param_groups[0]["lr"]), step(*arguments))[1]
    found.model.learn(128)
    assert rates == pytest.approx([0.005, 0.005, 0.0, 0.0])
    assert "linear from 0.01 to 0" in " ".join(found.explain(load(settings()).training))  # type: ignore[arg-type]


def test_it_says_what_it_derived() -> None:
    section = load(settings(max_steps=1000, gradient_accumulation=4)).training
    assert section is not None
    sentences = built(max_steps=1000, gradient_accumulation=4).explain(section)
    assert any("in 2 minibatches of 32" in sentence for sentence in sentences)
    assert any("Gradient accumulation: each minibatch is computed in parts (4)" in sentence for sentence in sentences)
    assert "Whole updates make 1,000 steps 1,024." in sentences


def test_observations_that_are_no_arrays_are_refused() -> None:
    class Texts(Switches):
        observation_space: Any = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2)])})

        def reset(self, **_: Any) -> Any:
            return {"a": (0,)}, {}

    with pytest.raises(CapabilityError, match="Tuple is no array"):
        built(kind=Texts)


def test_images_get_a_convolutional_policy() -> None:
    class Pictures(Switches):
        observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)

        def reset(self, **_: Any) -> Any:
            return self.observation_space.sample(), {}

    model: Any = built(kind=Pictures, hyperparameters={"policy_kwargs": {}}).model
    assert type(model.policy).__name__ == "ActorCriticCnnPolicy"


def test_most_cores_are_left_to_the_sandboxes() -> None:
    before = torch.get_num_threads()
    try:
        assert 1 <= use_threads() <= 4
        assert torch.get_num_threads() == use_threads()
    finally:
        torch.set_num_threads(before)
