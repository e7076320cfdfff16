"""The algorithms by name: the four that come along, and those that installed packages add.

A package adds one by an entry point of the group `agentenv.algorithms` whose value is an `Algorithm`. Two with the same name are an
error, since which of them trains would otherwise be an accident of installation order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm

from agentenv.config import TrainingConfig
from agentenv.errors import AgentEnvError, CapabilityError, NotFound
from agentenv.naming import near
from agentenv.train.plans import BatchPlan, a2c_plan, dqn_plan, ppo_plan, sac_plan

GROUP = "agentenv.algorithms"
EVERY_SPACE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to train.

    `learner` is a subclass of stable-baselines3's `BaseAlgorithm`. `action_spaces` are those it can act in. `plan(training, lanes)` turns
    `batch_size` into its keyword arguments. `forwards` are the dotted names (from the learner on) of the methods through which batches pass
    while gradients are recorded; without them `gradient_accumulation` is refused. `note` says what accumulation means for it.
    """

    name: str
    learner: type[BaseAlgorithm]
    action_spaces: tuple[type[Space[Any]], ...]
    plan: Callable[[TrainingConfig, int], BatchPlan]
    forwards: tuple[str, ...] = ()
    note: str = ""


BUILT_IN: tuple[Algorithm, ...] = (
    Algorithm("PPO", PPO, EVERY_SPACE, ppo_plan, ("policy.evaluate_actions",), "each minibatch is computed in parts"),
    Algorithm("A2C", A2C, EVERY_SPACE, a2c_plan, ("policy.evaluate_actions",), "each rollout is computed in parts"),
    Algorithm("DQN", DQN, (spaces.Discrete,), dqn_plan, ("q_net.forward",), "each replay sample is computed in parts"),
    Algorithm(
        "SAC",
        SAC,
        (spaces.Box,),
        sac_plan,
        ("actor.action_log_prob", "critic.forward"),
        "each replay sample is computed in parts, for the critics and then for the actor",
    ),
)


def algorithms() -> Mapping[str, Algorithm]:
    """Every algorithm that can be named here. Raises `AgentEnvError` where two have one name or an entry point is no `Algorithm`."""
    found = {built_in.name: (built_in, "agentenv") for built_in in BUILT_IN}
    for point in entry_points(group=GROUP):
        origin = point.dist.name if point.dist is not None else point.value
        if point.name in found:
            raise AgentEnvError(
                f"two algorithms are called {point.name!r}: one of {found[point.name][1]}, one of {origin}.",
                remedy=f"Uninstall one of the two packages, or let its author rename the entry point in the group {GROUP}.",
            )
        found[point.name] = (_loaded(point, origin), origin)
    return {name: algorithm for name, (algorithm, _) in found.items()}


def algorithm(name: str) -> Algorithm:
    """The algorithm called `name` (upper or lower case). Raises `NotFound` with the near matches."""
    known = algorithms()
    for candidate, found in known.items():
        if candidate.upper() == name.upper():
            return found
    hint = near(name, known)
    raise NotFound(
        f"there is no algorithm {name!r}.", remedy=(f"Did you mean {hint}? " if hint else "") + f"Known are {', '.join(sorted(known))}."
    )


def require_fit(chosen: Algorithm, action_space: Space[Any]) -> None:
    """Raises `CapabilityError`, naming algorithms that do fit, where `chosen` cannot act in `action_space`."""
    if isinstance(action_space, chosen.action_spaces):
        if isinstance(action_space, spaces.Box) and not (np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all()):
            raise CapabilityError(
                f"the environment's actions are {action_space}, without finite limits, so nothing says how large one may be.",
                remedy="Give the action space finite `low` and `high`.",
            )
        return
    wanted = " or ".join(_KINDS.get(kind, kind.__name__) for kind in chosen.action_spaces)
    fitting = [other.name for other in algorithms().values() if isinstance(action_space, other.action_spaces)]
    raise CapabilityError(
        f"{chosen.name} needs {wanted}, but this environment's actions are {action_space}.",
        remedy=f"Use {' or '.join(fitting)} here." if fitting else "No known algorithm can act in such a space.",
    )


_KINDS: dict[type[Any], str] = {
    spaces.Box: "continuous actions (Box)",
    spaces.Discrete: "a choice among single actions (Discrete)",
    spaces.MultiDiscrete: "several choices at once (MultiDiscrete)",
    spaces.MultiBinary: "several switches at once (MultiBinary)",
}


def _loaded(point: EntryPoint, origin: str) -> Algorithm:
    value = point.load()
    if not isinstance(value, Algorithm):
        raise AgentEnvError(
            f"the entry point {point.name!r} of {origin} in the group {GROUP} is {type(value).__name__}, no agentenv.train.Algorithm.",
            remedy="Let it name an `Algorithm` object.",
        )
    return value
