"""Gradient accumulation: the same update in parts, with less in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.train.doubles import KeyedSwitches, ScoredSwitches, Switches, lanes, settings

from agentenv.config import load
from agentenv.errors import ConfigError
from agentenv.train import GymnasiumVecEnv, algorithm
from agentenv.train.accumulation import in_micro_batches
from agentenv.train.learner import build

KINDS = {"PPO": Switches, "A2C": Switches, "DQN": Switches, "SAC": ScoredSwitches}
ONE_UPDATE = {"PPO": 64, "A2C": 64, "DQN": 44, "SAC": 42}
"""Steps after which exactly the first update has been made (DQN and SAC begin at 40)."""


def learner(name: str, parts: int, batch: int = 64, kind: Any = None, **hyperparameters: Any) -> Any:
    training = load(settings(name, batch_size=batch, gradient_accumulation=parts, hyperparameters=hyperparameters)).training
    assert training is not None
    envs = GymnasiumVecEnv(lanes(kind or KINDS[name])(None, 2, None))
    return build(algorithm(name), training, envs, seed=7).model


def updated(name: str, parts: int, **arguments: Any) -> dict[str, torch.Tensor]:
    model = learner(name, parts, **arguments)
    model.learn(ONE_UPDATE[name])
    assert model._n_updates > 0
    return {key: value.clone() for key, value in model.policy.state_dict().items()}


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[key] - other[key]).abs().max()) for key in one)


# SAC draws noise for each part; PyTorch's generator gives the parts the same numbers as the whole where they are multiples of 16.
@pytest.mark.parametrize(("name", "parts"), [(name, parts) for name in KINDS for parts in (2, 4, 5) if (name, parts) != ("SAC", 5)])
def test_an_update_in_parts_is_the_update_of_the_whole_batch(name: str, parts: int) -> None:
    whole = updated(name, 1)
    assert difference(whole, updated(name, parts)) < 2e-6
    assert difference(whole, {key: torch.zeros_like(value) for key, value in whole.items()}) > 1e-2


def test_a_batch_of_the_size_of_a_part_would_have_learned_something_else() -> None:
    assert difference(updated("PPO", 4, batch=64), updated("PPO", 1, batch=16)) > 1e-4


def test_dictionary_observations_can_be_computed_in_parts() -> None:
    assert difference(updated("PPO", 1, kind=KeyedSwitches), updated("PPO", 4, kind=KeyedSwitches)) < 2e-6


def test_each_part_passes_the_network_alone_in_both_directions() -> None:
    model = learner("PPO", 4, n_epochs=1)
    sizes: list[tuple[int, bool]] = []
    model.policy.mlp_extractor.register_forward_hook(
        lambda _module, inputs, _output: sizes.append((len(inputs[0]), torch.is_grad_enabled()))
    )
    model.learn(64)
    recorded = [size for size, gradients in sizes if gradients]
    assert set(recorded) == {16}
    assert len(recorded) == 8, "four parts forward, and the same four again on the way back"


def test_only_one_part_is_held_in_memory_at_a_time() -> None:
    layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(8)])

    def held(parts: int) -> int:
        alive: set[int] = set()
        most = 0

        class Kept:
            def __init__(self, tensor: torch.Tensor) -> None:
                nonlocal most
                self.tensor, self.size = tensor, tensor.numel()
                alive.add(id(self))
                sizes[id(self)] = self.size
                most = max(most, sum(sizes[one] for one in alive))

            def __del__(self) -> None:
                alive.discard(id(self))

        sizes: dict[int, int] = {}
        forward = in_micro_batches(layers, parts) if parts > 1 else layers
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            forward(torch.ones(256, 32)).mean().backward()
        return most

    assert held(8) < held(1) / 2


def test_without_gradients_nothing_is_split() -> None:
    calls: list[int] = []

    def forward(batch: torch.Tensor) -> torch.Tensor:
        calls.append(len(batch))
        return batch

    split = in_micro_batches(forward, 4)
    with torch.no_grad():
        split(torch.ones(8, 2))
    assert calls == [8]
    split(torch.ones(8, 2, requires_grad=True))
    assert calls == [8, 2, 2, 2, 2]


def test_results_that_are_tuples_or_none_are_joined() -> None:
    split = in_micro_batches(lambda batch: (batch * 2, None), 3)
    doubled, nothing = split(torch.arange(7.0, requires_grad=True))
    assert doubled.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert nothing is None


def test_more_parts_than_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="65 parts of a batch of 64 samples would be empty; write 64 or less"):
        learner("PPO", 65)


def test_a_shared_feature_extractor_is_refused_where_it_would_change_in_between() -> None:
    with pytest.raises(ConfigError, match="shares the critics' feature extractor"):
        learner("SAC", 2, policy_kwargs={"net_arch": [8], "share_features_extractor": True})
