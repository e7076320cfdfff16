"""`SandboxVectorEnv`: step for step what Gymnasium's own vector environment does, and what happens when sandboxes die."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.conditions import more_in_soak
from tests.envs import samples
from tests.envs.conftest import BASIC
from tests.envs.local_sandbox import LocalSandbox

from agentenv.envs import EnvTimeouts, SandboxVectorEnv
from agentenv.errors import AgentEnvError, CapabilityError, EnvironmentFault, InfrastructureError, InvalidState, SandboxDied

SAMPLES = samples.__file__
MODES = list(AutoresetMode)


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, types of arrays and the order of infos included."""
    if isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in other)
    if isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(other, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return all(map(same, one, other)) if other.dtype == object else bool(np.array_equal(one, other, equal_nan=other.dtype.kind == "f"))
    return bool(one == other)


def gymnasiums_own(name: str, mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make(name)] * 3, autoreset_mode=mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", more_in_soak(["CartPole-v1", "Pendulum-v1", "Blackjack-v1"], ["Taxi-v4"]))
def test_step_for_step_as_gymnasium(stand_in: Callable[[], LocalSandbox], name: str, mode: AutoresetMode) -> None:
    """Observations, rewards, flags, infos with their masks, final observations: all equal, through several episodes."""
    theirs = gymnasiums_own(name, mode)
    mine = SandboxVectorEnv(f"gymnasium:{name}", 3, autoreset_mode=mode, factory=stand_in)
    assert mine.observation_space == theirs.observation_space
    assert mine.action_space == theirs.action_space
    assert same(mine.reset(seed=7), theirs.reset(seed=7))
    theirs.action_space.seed(1)
    ends = 0
    for _ in range(230 if name in ("Pendulum-v1", "Taxi-v4") else 60):
        actions = theirs.action_space.sample()
        result, expected = mine.step(actions), theirs.step(actions)
        assert same(result, expected)
        ended = expected[2] | expected[3]
        ends += int(ended.sum())
        if mode is AutoresetMode.DISABLED and ended.any():
            assert same(mine.reset(options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended}))
    assert ends >= 3
    assert same(mine.reset(seed=[1, None, 3]), theirs.reset(seed=[1, None, 3])) or name != "CartPole-v1"
    mine.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_real_sandboxes_do_the_same(usable_backend: str, mode: AutoresetMode) -> None:
    theirs = gymnasiums_own("CartPole-v1", mode)
    mine = SandboxVectorEnv("gymnasium:CartPole-v1", 3, autoreset_mode=mode, isolation=usable_backend)
    assert same(mine.reset(seed=7), theirs.reset(seed=7))
    for step in range(40):
        actions = np.array([step % 2, 1, 0])
        result, expected = mine.step(actions), theirs.step(actions)
        assert same(result, expected)
        ended = expected[2] | expected[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            assert same(mine.reset(options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended}))
    mine.close()


def test_infos_of_every_lane(stand_in: Callable[[], LocalSandbox]) -> None:
    envs = SandboxVectorEnv("basic_rl_env", 2, options=BASIC, factory=stand_in, autoreset_mode="SameStep")
    _, infos = envs.reset(seed=0)
    assert infos["_optimal_return"].tolist() == [True, True]
    best = infos["optimal_return"]
    total, done = np.zeros(2), np.zeros(2, bool)
    observations = envs.reset(seed=0)[0]
    for _ in range(16):
        wrong = observations[:, :16] != observations[:, 16:]
        observations, rewards, terminated, _, infos = envs.step(wrong.astype(np.float32))
        total[~done] += rewards[~done]
        done |= terminated
        if terminated.any():
            assert infos["final_info"]["optimal_return"][terminated].tolist() == best[terminated].tolist() or done.all()
        if done.all():
            break
    assert total.tolist() == best.tolist()
    envs.close()


def test_spaces_that_vary_in_size(stand_in: Callable[[], LocalSandbox]) -> None:
    envs = SandboxVectorEnv(f"{SAMPLES}:Talker", 2, factory=stand_in)
    observations, _ = envs.reset()
    assert observations == {"text": ("", ""), "count": pytest.approx(np.array([0, 0]))}
    observations, rewards, *_ = envs.step(("abc", "f"))
    assert (observations["text"], rewards.tolist()) == (("ABC", "F"), [3.0, 1.0])
    with pytest.raises(AgentEnvError, match="do not fit"):
        envs.step(("abc",))
    envs.close()


def test_returned_arrays_are_the_callers(stand_in: Callable[[], LocalSandbox]) -> None:
    envs = SandboxVectorEnv(f"{SAMPLES}:Counter", 2, factory=stand_in)
    first, _ = envs.reset(seed=1)
    kept = first.copy()
    second, rewards, *_ = envs.step([1, 2])
    envs.step([0, 0])
    assert (first == kept).all()
    assert second[:, 0].tolist() == [1.0, 1.0]
    assert rewards.tolist() == [1.0, 2.0]
    envs.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_dead_sandbox_is_marked_and_replaced(place: dict[str, Any], mode: AutoresetMode) -> None:
    envs = SandboxVectorEnv("basic_rl_env", 3, options=BASIC, autoreset_mode=mode, **place)
    before, _ = envs.reset(seed=1)
    dead = envs.sandboxes[1]
    dead.kill()
    observations, rewards, terminated, truncated, infos = envs.step([0, 0, 0])
    assert infos["_infra_error"].tolist() == [False, True, False]
    assert isinstance(infos["infra_error"][1], str)
    assert (rewards[1], terminated.tolist(), truncated.tolist()) == (0.0, [False] * 3, [False, True, False])
    last = infos["final_obs"][1] if mode is AutoresetMode.SAME_STEP else observations[1]
    assert (last == before[1]).all()
    if mode is AutoresetMode.DISABLED:
        with pytest.raises(InvalidState, match=r"lanes \[1\] have ended"):
            envs.step([1, 1, 1])
        envs.reset(options={"reset_mask": truncated})
    if mode is AutoresetMode.NEXT_STEP:
        observations, rewards, _, truncated, infos = envs.step([1, 1, 1])
        assert (rewards[1], truncated[1]) == (0.0, False)
        assert "infra_error" not in infos
    assert envs.sandboxes[1] is not dead
    observations, rewards, _, truncated, infos = envs.step([2, 2, 2])
    assert "infra_error" not in infos
    assert abs(rewards).min() == 1.0
    envs.close()


def test_a_replaced_lane_draws_the_same_again_in_a_rerun(stand_in: Callable[[], LocalSandbox]) -> None:
    drawn = []
    for _ in range(2):
        envs = SandboxVectorEnv("basic_rl_env", 2, options=BASIC, autoreset_mode="SameStep", factory=stand_in)
        envs.reset(seed=5)
        envs.sandboxes[0].kill()
        observations, *_ = envs.step([0, 0])
        drawn.append(observations.tolist())
        envs.close()
    assert drawn[0] == drawn[1]


def test_a_sandbox_that_dies_in_its_reset_is_replaced_at_once(stand_in: Callable[[], LocalSandbox]) -> None:
    envs = SandboxVectorEnv("basic_rl_env", 2, options=BASIC, factory=stand_in)
    for sandbox in envs.sandboxes:
        sandbox.kill()
    observations, infos = envs.reset(seed=1)
    assert "infra_error" not in infos
    assert observations.shape == (2, 32)
    envs.close()


def test_a_lane_that_keeps_dying_is_an_error_in_the_end(stand_in: Callable[[], LocalSandbox]) -> None:
    envs = SandboxVectorEnv(
        f"{SAMPLES}:Troubled", 2, options={"trouble": "exit"}, autoreset_mode="SameStep", factory=stand_in, max_replacements=2
    )
    envs.reset()
    envs.step([2, 0])
    envs.step([2, 0])
    with pytest.raises(SandboxDied, match="ended with status 7"):
        envs.step([2, 0])
    envs.close()


def test_when_no_sandbox_can_be_made_any_more_the_reason_is_raised(stand_in: Callable[[], LocalSandbox]) -> None:
    allowed = 2

    def factory() -> LocalSandbox:
        nonlocal allowed
        if not allowed:
            raise InfrastructureError("the machine is full.")
        allowed -= 1
        return stand_in()

    envs = SandboxVectorEnv("basic_rl_env", 2, options=BASIC, factory=factory, autoreset_mode="SameStep", max_replacements=1)
    envs.reset()
    envs.sandboxes[0].kill()
    with pytest.raises(InfrastructureError, match="the machine is full"):
        envs.step([0, 0])
    envs.close()


def test_a_lane_that_hangs_is_timed_out_alone(stand_in: Callable[[], LocalSandbox]) -> None:
    envs = SandboxVectorEnv(f"{SAMPLES}:Troubled", 3, timeouts=EnvTimeouts(step=0.3), autoreset_mode="SameStep", factory=stand_in)
    envs.reset()
    *_, infos = envs.step([0, 2, 0])
    assert infos["_infra_error"].tolist() == [False, True, False]
    assert "timeouts.step" in infos["infra_error"][1]
    assert envs.step([0, 0, 0])[0][:, 0].tolist() == [2.0, 1.0, 2.0]
    envs.close()


def test_an_error_of_the_environment_is_raised_after_all_have_answered(stand_in: Callable[[], LocalSandbox]) -> None:
    envs = SandboxVectorEnv(f"{SAMPLES}:Troubled", 3, factory=stand_in)
    envs.reset()
    with pytest.raises(EnvironmentFault, match="the dice fell"):
        envs.step([0, 1, 0])
    observations, *_ = envs.step([0, 0, 0])
    assert observations[:, 0].tolist() == [2.0, 1.0, 2.0]
    envs.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value)
def test_an_episode_that_ends_beside_an_error_is_not_forgotten(stand_in: Callable[[], LocalSandbox], mode: AutoresetMode) -> None:
    envs = SandboxVectorEnv(f"{SAMPLES}:Troubled", 2, autoreset_mode=mode, factory=stand_in)
    envs.set_attr("length", [1, 100])
    envs.reset()
    with pytest.raises(EnvironmentFault, match="the dice fell"):
        envs.step([0, 1])
    observations, _, terminated, _, _ = envs.step([0, 0])
    assert observations[:, 0].tolist() == [0.0, 1.0]
    assert not terminated.any()
    envs.close()


def test_attributes_calls_and_rendering_of_all_lanes(stand_in: Callable[[], LocalSandbox]) -> None:
    envs = SandboxVectorEnv(f"{SAMPLES}:Counter", 2, render_mode="ansi", factory=stand_in)
    envs.reset()
    envs.set_attr("length", [3, 4])
    assert envs.get_attr("length") == (3, 4)
    assert envs.call("add", 1, other=1) == (2, 2)
    assert envs.render() == ("step 0\n", "step 0\n")
    with pytest.raises(ValueError, match="one for each of the 2 lanes"):
        envs.set_attr("length", [1, 2, 3])
    envs.close()


def test_saved_lanes_go_on_in_other_sandboxes(stand_in: Callable[[], LocalSandbox]) -> None:
    one = SandboxVectorEnv("gymnasium:CartPole-v1", 2, factory=stand_in)
    one.reset(seed=1)
    while not one.step([1, 0])[2].any():
        pass
    states = one.save()
    other = SandboxVectorEnv("gymnasium:CartPole-v1", 2, factory=stand_in)
    other.reset(seed=9)
    other.load(states)
    for step in range(30):
        assert same(one.step([step % 2, 1]), other.step([step % 2, 1]))
    one.close()
    other.close()
    counters = SandboxVectorEnv(f"{SAMPLES}:Counter", 1, factory=stand_in)
    with pytest.raises(CapabilityError, match="no save"):
        counters.save()
    counters.close()


@pytest.mark.parametrize(
    ("reset", "complaint"),
    [
        ({"seed": [1, 2, 3]}, "3 seeds"),
        ({"options": {"reset_mask": [True, False]}}, "boolean array"),
        ({"options": {"reset_mask": np.zeros(2, bool)}}, "at least one True"),
    ],
)
def test_resets_that_make_no_sense(stand_in: Callable[[], LocalSandbox], reset: dict[str, Any], complaint: str) -> None:
    envs = SandboxVectorEnv(f"{SAMPLES}:Counter", 2, factory=stand_in)
    with pytest.raises(ValueError, match=complaint):
        envs.reset(**reset)
    envs.close()


def test_a_failed_start_leaves_no_sandbox(stand_in: Callable[[], LocalSandbox]) -> None:
    made: list[LocalSandbox] = []
    asked = itertools.count()  # the lanes open at the same time

    def factory() -> LocalSandbox:
        if next(asked) == 2:
            raise InfrastructureError("the machine is full.")
        made.append(stand_in())
        return made[-1]

    with pytest.raises(InfrastructureError, match="the machine is full"):
        SandboxVectorEnv("basic_rl_env", 3, options=BASIC, factory=factory)
    assert all(sandbox.dead for sandbox in made)
    with pytest.raises(AgentEnvError, match="at least 1"):
        SandboxVectorEnv("basic_rl_env", 0)


def test_close_ends_all_and_is_idempotent(stand_in: Callable[[], LocalSandbox]) -> None:
    envs = gymnasium.make_vec(
        "agentenv/basic_rl_env-v0", num_envs=2, vectorization_mode="vector_entry_point", options=BASIC, factory=stand_in
    )
    sandboxes = envs.unwrapped.sandboxes
    envs.close()
    envs.close()
    assert all(sandbox.dead for sandbox in sandboxes)
    with pytest.raises(InvalidState, match="closed"):
        envs.unwrapped.step([0, 0])
