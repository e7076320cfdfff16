"""Environment steps a second: CartPole in four sandboxes beside gymnasium's AsyncVectorEnv with four worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np

from agentenv.benchmarks.row import ISOLATION, Row, Scale, Target, in_turn, rate_row
from agentenv.envs import SandboxVectorEnv

ENVIRONMENT = "CartPole-v1"
LANES = 4


def steps_per_second(envs: gymnasium.vector.VectorEnv[Any, Any, Any], steps: int, actions: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    """Steps of all lanes together a second, over `steps` batched steps with the given actions, int64[steps, lanes]."""
    begin = perf_counter()
    for index in range(steps):
        envs.step(actions[index])
    return steps * envs.num_envs / (perf_counter() - begin)


def run(scale: Scale) -> Iterator[Row]:
    """One row: steps of all lanes together a second."""
    steps = 200  # short turns, so that what else the machine does falls on both sides alike
    actions = np.random.default_rng(0).integers(0, 2, size=(steps, LANES))
    ours = SandboxVectorEnv(f"gymnasium:{ENVIRONMENT}", num_envs=LANES, isolation=ISOLATION)
    theirs = gymnasium.make_vec(ENVIRONMENT, num_envs=LANES, vectorization_mode="async")
    try:
        ours.reset(seed=0)
        theirs.reset(seed=0)
        mine, others = in_turn(
            scale.count(100, 5),
            lambda: steps_per_second(ours, steps, actions),
            lambda: steps_per_second(theirs, steps, actions),
            warm_up=1,
        )
    finally:
        ours.close()
        theirs.close()
    yield rate_row("step", mine, others, unit="steps/s", reference=f"gymnasium AsyncVectorEnv({LANES})", target=Target("ratio", ">=", 2.0))
