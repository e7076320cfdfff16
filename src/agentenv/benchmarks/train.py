"""Training throughput: the same PPO on our sandboxed vector environment and on gymnasium's worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import gymnasium
from stable_baselines3 import PPO

from agentenv.benchmarks.row import ISOLATION, Row, Scale, Target, in_turn, rate_row
from agentenv.benchmarks.step import ENVIRONMENT, LANES
from agentenv.envs import SandboxVectorEnv
from agentenv.train.learner import use_threads
from agentenv.train.vec_env import GymnasiumVecEnv

N_STEPS = 256


def learner(envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> PPO:
    """PPO with the same settings whatever it learns on."""
    return PPO("MlpPolicy", GymnasiumVecEnv(envs), n_steps=N_STEPS, batch_size=256, seed=0, device="cpu", verbose=0)


def steps_per_second(model: PPO, steps: int) -> float:
    """Environment steps a second over `steps` further ones, the optimiser's work included."""
    begin = perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (perf_counter() - begin)


def run(scale: Scale) -> Iterator[Row]:
    """One row: a training's environment steps a second."""
    # As a training does: spinning PyTorch threads would take the cores that the environments of both sides need.
    use_threads()
    steps = N_STEPS * LANES
    ours = SandboxVectorEnv(f"gymnasium:{ENVIRONMENT}", num_envs=LANES, isolation=ISOLATION)
    theirs = gymnasium.make_vec(ENVIRONMENT, num_envs=LANES, vectorization_mode="async")
    try:
        sandboxed, plain = learner(ours), learner(theirs)
        mine, others = in_turn(
            scale.count(32, 1), lambda: steps_per_second(sandboxed, steps), lambda: steps_per_second(plain, steps), warm_up=1
        )
    finally:
        ours.close()
        theirs.close()
    yield rate_row("train", mine, others, unit="steps/s", reference="SB3 PPO on AsyncVectorEnv", target=Target("ratio", ">=", 0.9))
