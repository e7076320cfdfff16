"""`SandboxEnv` in a stand-in and in real sandboxes: Gymnasium's contract, determinism, errors, snapshots."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tests.conditions import more_in_soak
from tests.envs import samples
from tests.envs.conftest import BASIC
from tests.machines import runsc_or_skip

from agentenv.envs import EnvTimeouts, SandboxEnv
from agentenv.errors import (
    AgentEnvError,
    CapabilityError,
    EnvironmentFault,
    EnvironmentTimeout,
    InvalidState,
    NotFound,
    OutOfMemory,
    SandboxDied,
)
from agentenv.isolation import Resources, probe_all

SAMPLES = samples.__file__


def same(one: Any, other: Any) -> bool:
    """Whether two results of reset or step are equal."""
    if isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(one, other)) if isinstance(other, np.ndarray) else one == other


@pytest.mark.parametrize(
    ("name", "options"), [("basic_rl_env", BASIC), (f"{SAMPLES}:Counter", {"length": 9}), ("gymnasium:CartPole-v1", {})]
)
def test_gymnasiums_own_checker_has_nothing_to_say(place: dict[str, Any], name: str, options: dict[str, Any]) -> None:
    env = gymnasium.make("agentenv/basic_rl_env-v0", name=name, options=options, **place).unwrapped
    with env, warnings.catch_warnings():
        warnings.simplefilter("error")
        if "CartPole" in name:
            warnings.filterwarnings("ignore", message=".*infinity.*")
        check_env(env, skip_render_check="CartPole" in name)


@pytest.mark.parametrize("name", more_in_soak(["Pendulum-v1", "FrozenLake-v1"], ["CartPole-v1", "Acrobot-v1", "Blackjack-v1"]))
def test_an_environment_of_gymnasium_is_itself(stand_in: Any, name: str) -> None:
    plain = gymnasium.make(name)
    with SandboxEnv(f"gymnasium:{name}", factory=stand_in) as env:
        assert env.observation_space == plain.observation_space
        assert env.action_space == plain.action_space
        assert same(env.reset(seed=3), plain.reset(seed=3))
        plain.action_space.seed(1)
        for _ in range(30):
            action = plain.action_space.sample()
            mine, theirs = env.step(action), plain.step(action)
            assert same(mine, theirs)
            if mine[2] or mine[3]:
                assert same(env.reset(), plain.reset())


def test_the_same_seed_gives_the_same_episode_in_another_process(place: dict[str, Any]) -> None:
    def episode(env: SandboxEnv) -> list[Any]:
        return [env.reset(seed=11)[0].tolist(), *(env.step(action)[0].tolist() for action in (1, 2, 3))]

    with SandboxEnv(options=BASIC, **place) as one, SandboxEnv(options=BASIC, **place) as other:
        assert episode(one) == episode(other)
        assert one.reset()[0].tolist() == other.reset()[0].tolist()


def test_scores_are_an_action(place: dict[str, Any]) -> None:
    with SandboxEnv(options=BASIC, **place) as env:
        before, _ = env.reset(seed=1)
        scores = np.zeros(16, np.float32)
        scores[[5, 9]] = 2.0
        after, *_ = env.step(scores)
        assert np.flatnonzero(before != after).tolist() == [5]
        after, *_ = env.step(scores.reshape(1, 16))
        assert (before == after).all()
        with pytest.raises(AgentEnvError, match="does not fit"):
            env.step(np.zeros(7))
        with pytest.raises(AgentEnvError, match="NaN"):
            env.step(np.full(16, np.nan))


@pytest.mark.parametrize("action", ["left", 1.5, None, [1, 2]])
def test_an_action_of_another_type_is_refused(stand_in: Any, action: Any) -> None:
    with SandboxEnv(f"{SAMPLES}:Counter", factory=stand_in) as env:
        env.reset()
        with pytest.raises(AgentEnvError, match="does not fit Discrete"):
            env.step(action)
        assert env.step(2)[1] == 2.0


def test_options_infos_render_and_calls(place: dict[str, Any]) -> None:
    with SandboxEnv(f"{SAMPLES}:Counter", options={"length": 4}, render_mode="ansi", **place) as env:
        observation, info = env.reset(seed=2, options={"start": 3})
        assert (observation[0], info) == (3.0, {"episode": 1, "options": {"start": 3}})
        assert env.render() == "step 3\n"
        assert env.step(0)[2] is True
        assert env.call("add", 1, other=2) == 3
        assert env.call("length") == 4
        assert env.metadata["render_modes"] == ["ansi"]


def test_spaces_that_vary_in_size(place: dict[str, Any]) -> None:
    with SandboxEnv(f"{SAMPLES}:Talker", **place) as env:
        assert env.reset()[0] == {"text": "", "count": 0}
        observation, reward, *_ = env.step("dead beef")
        assert (observation, reward) == ({"text": "DEAD BEEF", "count": 1}, 9.0)
        assert env.observation_space.contains(observation)


def test_large_frames(place: dict[str, Any]) -> None:
    with SandboxEnv(f"{SAMPLES}:Large", **place) as env:
        observation, info = env.reset()
        assert (observation == 1).all()
        assert info["long"] == "y" * 300_000
        observation, reward, _, _, info = env.step(np.full(50_000, 0.5))
        assert (observation == 2).all()
        assert (reward, len(info["long"])) == (25_000.0, 5000)


def test_an_error_of_the_environment_is_told_with_its_traceback_and_the_episode_goes_on(place: dict[str, Any]) -> None:
    with SandboxEnv(f"{SAMPLES}:Troubled", **place) as env:
        env.reset()
        with pytest.raises(EnvironmentFault, match="the dice fell off the table") as caught:
            env.step(1)
        assert caught.value.kind == "RuntimeError"
        assert "samples.py" in caught.value.traceback
        assert env.step(0)[0][0] == 1.0


@pytest.mark.parametrize(("trouble", "how"), [("exit", "ended with status 7"), ("kill", "was ended by signal 9")])
def test_a_process_that_dies_is_a_dead_sandbox_with_evidence(place: dict[str, Any], trouble: str, how: str) -> None:
    with SandboxEnv(f"{SAMPLES}:Troubled", options={"trouble": trouble}, **place) as env:
        env.reset()
        with pytest.raises(SandboxDied, match=how) as caught:
            env.step(2)
        assert caught.value.evidence["stderr"] == "a last word\n"
        with pytest.raises(SandboxDied, match=how):
            env.reset()


def test_a_sandbox_that_dies_is_never_a_reward(place: dict[str, Any]) -> None:
    with SandboxEnv(options=BASIC, **place) as env:
        env.reset(seed=1)
        env.sandbox.kill()
        with pytest.raises(AgentEnvError):
            env.step(1)
        with pytest.raises(AgentEnvError):
            env.step(1)


def test_an_environment_that_needs_too_much_memory_is_told_so(usable_backend: str) -> None:
    source = f"{Path(SAMPLES).parent / 'hungry.py'}:Hungry"
    with SandboxEnv(source, isolation=usable_backend, resources=Resources(memory=96 << 20)) as env:
        env.reset()
        with pytest.raises(OutOfMemory, match="at its limit of 96 MiB"):
            env.step(0)


@pytest.mark.parametrize("operation", ["reset", "step"])
def test_an_environment_that_hangs_is_a_timeout(place: dict[str, Any], operation: str) -> None:
    limits = EnvTimeouts(reset=0.3, step=0.3)
    with SandboxEnv(f"{SAMPLES}:Troubled", timeouts=limits, **place) as env:
        env.reset()
        with pytest.raises(EnvironmentTimeout, match="a last word") as caught:
            env.step(2) if operation == "step" else env.reset(options={"trouble": "hang"})
        assert (caught.value.operation, caught.value.seconds) == (operation, 0.3)
        assert f"timeouts.{operation}" in str(caught.value)


def test_a_chatty_environment_is_not_blocked_by_its_output(place: dict[str, Any]) -> None:
    with SandboxEnv(f"{SAMPLES}:Troubled", options={"trouble": "print"}, timeouts=EnvTimeouts(step=20), **place) as env:
        env.reset()
        for _ in range(20):
            env.step(2)
        assert env.step(0)[0][0] == 21.0
        assert len(env.lane.process.output) <= 65_536


@pytest.mark.parametrize(
    ("name", "options", "error", "complaint"),
    [
        ("basic_rl_emv", {}, NotFound, "did you mean basic_rl_env"),
        ("gymnasium:CartPole-v9", {}, NotFound, "CartPole-v1"),
        ("no_such_module:Env", {}, NotFound, "no module 'no_such_module'"),
        ("nowhere/env.py:Env", {}, NotFound, "no file nowhere/env.py"),
        (f"{SAMPLES}:Missing", {}, NotFound, "environments in it: .*Counter"),
        (f"{SAMPLES}:Counter", {"size": 3}, EnvironmentFault, "unexpected keyword argument 'size'"),
        (f"{SAMPLES}:Troubled", {"trouble": "raise", "when": "start"}, EnvironmentFault, "no start today"),
        (f"{SAMPLES}:Troubled", {"trouble": "exit", "when": "start"}, SandboxDied, "ended with status 7 during its start"),
    ],
)
def test_what_cannot_start_says_why(stand_in: Any, name: str, options: dict[str, Any], error: type[AgentEnvError], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        SandboxEnv(name, options=options, factory=stand_in)


def test_a_file_that_imports_its_neighbour_says_so(stand_in: Any, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("import neighbour_of_mine\nclass Task: ...\n")
    with pytest.raises(NotFound, match=r"task.py imports 'neighbour_of_mine'.*`package.module:Class`"):
        SandboxEnv(f"{tmp_path}/task.py:Task", factory=stand_in)


def test_a_start_that_hangs_is_a_timeout(stand_in: Any) -> None:
    with pytest.raises(EnvironmentTimeout, match=r"did not answer its start .*timeouts\.startup"):
        SandboxEnv(f"{SAMPLES}:Troubled", options={"when": "start"}, factory=stand_in, timeouts=EnvTimeouts(startup=1.0))


def test_close_is_idempotent_and_the_rest_says_that_it_is_closed(place: dict[str, Any]) -> None:
    env = SandboxEnv(options=BASIC, **place)
    env.close()
    env.close()
    with pytest.raises(InvalidState, match="closed"):
        env.reset()


@pytest.mark.parametrize(
    ("name", "options"), [("basic_rl_env", BASIC), ("gymnasium:CartPole-v1", {}), ("gymnasium:MountainCarContinuous-v0", {})]
)
def test_a_snapshot_restores_the_episode(place: dict[str, Any], name: str, options: dict[str, Any]) -> None:
    with SandboxEnv(name, options=options, **place) as env:
        env.reset(seed=1)
        env.action_space.seed(1)
        actions = [env.action_space.sample() for _ in range(4)]
        env.step(actions[0])
        kept = env.snapshot()
        first = [env.step(action) for action in actions]
        env.restore(kept)
        again = [env.step(action) for action in actions]
        assert all(map(same, first, again))


def test_a_snapshot_restores_an_episode_whose_sandbox_is_dead(usable_backend: str) -> None:
    with SandboxEnv(isolation=usable_backend) as env:
        env.reset(seed=1)
        env.step(2)
        kept = env.snapshot()
        expected = env.step(3)
        env.sandbox.kill()
        env.restore(kept)
        assert same(env.step(3), expected)


def test_forks_go_on_from_the_same_step_and_part(place: dict[str, Any]) -> None:
    with SandboxEnv(options=BASIC, **place) as env:
        env.reset(seed=1)
        env.step(0)
        children = env.fork(2)
        results = [child.step(number)[0] for number, child in enumerate(children, start=1)]
        own, *_ = env.step(3)
        assert not (results[0] == results[1]).all()
        for child, result, number in zip(children, results, (1, 2), strict=True):
            assert np.flatnonzero(result[:16] != own[:16]).tolist() == sorted({3, number})
            child.close()


def test_an_environment_that_cannot_be_saved_says_so(place: dict[str, Any]) -> None:
    with SandboxEnv(f"{SAMPLES}:Counter", **place) as env:
        env.reset()
        if env.sandbox.capabilities.memory_snapshot:
            pytest.skip("here it is kept as it is, with its memory")
        for attempt in (env.snapshot, env.save, lambda: env.fork(1)):
            with pytest.raises(CapabilityError, match="no save"):
                attempt()


@pytest.fixture
def remembering_backend(monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend that can write memory down; without one the tests that need it are skipped."""
    runsc_or_skip(monkeypatch)
    able = [probe.backend for probe in probe_all() if probe.usable and probe.capabilities.memory_snapshot]
    if not able:
        pytest.skip("no backend of this machine can write memory down")
    return able[-1]


def test_where_memory_is_kept_an_environment_goes_on_without_being_saved(remembering_backend: str) -> None:
    with SandboxEnv(f"{SAMPLES}:Counter", isolation=remembering_backend) as env:
        env.reset()
        env.step(0)
        env.step(0)
        kept = env.snapshot()
        children = env.fork(2)
        third = {"steps": 3}
        assert [one.step(0)[4] for one in (env, *children)] == [third] * 3
        env.step(0)
        env.restore(kept)
        assert env.step(0)[4] == third
        env.sandbox.kill()
        env.restore(kept)
        assert env.step(0)[4] == third
        for child in children:
            child.step(0)
            child.close()


def test_a_module_of_the_user_is_brought_along(stand_in: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "homemade"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("REWARD = 2.5\n")
    (package / "task.py").write_text(
        textwrap.dedent(
            """
            from agentenv.envs import Environment, spaces
            from homemade.helper import REWARD

            class Task(Environment):
                observation_space = spaces.Discrete(3)
                action_space = spaces.Discrete(2)

                def reset(self, *, seed=None, options=None):
                    return 0, {}

                def step(self, action):
                    return 1, REWARD, True, False, {}
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with SandboxEnv("homemade.task:Task", factory=stand_in) as env:
        assert env.reset() == (0, {})
        assert env.step(1) == (1, 2.5, True, False, {})


def test_it_runs_where_agentenv_numpy_and_gymnasium_are_unknown(stand_in: Any) -> None:
    """The guest package is imported from the archive alone, by a Python without site-packages."""
    with SandboxEnv(f"{SAMPLES}:Counter", factory=stand_in) as env:
        archive = next((env.sandbox.root / "opt/agentenv").glob("guest-*.zip"))  # type: ignore[attr-defined]
        code = (
            f"import sys; sys.path.insert(0, {str(archive)!r}); from agentenv.envs import Environment, spaces; "
            "from agentenv.envs.guest import basic; import agentenv.envs.guest.server; "
            "assert 'guest-' in basic.__file__; assert not {'numpy', 'gymnasium', 'msgspec'} & set(sys.modules)"
        )
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
