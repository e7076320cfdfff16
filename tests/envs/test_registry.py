"""Names of environments."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from agentenv.envs import registry
from agentenv.envs.registry import Registration, Registry
from agentenv.errors import AgentEnvError, NotFound


@pytest.fixture
def known() -> Registry:
    return Registry.discover()


def test_built_in_names_and_locations(known: Registry) -> None:
    assert known.find("basic_rl_env").target == "agentenv.envs.guest.basic:BasicRLEnv"
    for name in ("gymnasium:CartPole-v1", "package.module:Class", "folder/file.py:Class"):
        assert known.find(name).target == name
    assert [entry.name for entry in known.names()] == ["basic_rl_env"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("basic_rl", "did you mean basic_rl_env"),
        ("CartPole-v1", "did you mean gymnasium:CartPole-v1"),
        ("task.py", "write task.py:Class"),
        ("zzzz", "known are basic_rl_env, gymnasium:ID, module:Class and path.py:Class"),
        ("gymnasium:", "lacks its last part"),
    ],
)
def test_an_unknown_name_says_what_is_near(known: Registry, name: str, hint: str) -> None:
    with pytest.raises(NotFound, match=hint):
        known.find(name)


def test_a_registered_name_brings_its_options(known: Registry) -> None:
    known.add(Registration("pole", "gymnasium:CartPole-v1", {"sutton_barto_reward": True}))
    assert known.find("pole").options == {"sutton_barto_reward": True}
    known.add(Registration("pole", "gymnasium:CartPole-v1", {"sutton_barto_reward": True}))
    with pytest.raises(AgentEnvError, match=r"two environments are called 'pole'.*Rename one"):
        known.add(Registration("pole", "other.module:Pole"))


@pytest.mark.parametrize(("name", "target"), [("", "a:B"), ("a:b", "a:B"), ("plain", "no_colon")])
def test_registrations_that_make_no_sense(known: Registry, name: str, target: str) -> None:
    with pytest.raises(AgentEnvError, match="must"):
        known.add(Registration(name, target))


def test_installed_packages_bring_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("maze", "mazes.env:Maze", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]) if group == registry.ENTRY_POINTS else EntryPoints())
    assert Registry.discover().find("maze").target == "mazes.env:Maze"
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([EntryPoint("basic_rl_env", "mazes.env:Maze", group)]))
    with pytest.raises(AgentEnvError, match="two environments are called 'basic_rl_env'"):
        Registry.discover()


def test_registering_in_this_process() -> None:
    registry.register("registered_in_a_test", "gymnasium:CartPole-v1", sutton_barto_reward=True)
    assert registry.default_registry().find("registered_in_a_test").options == {"sutton_barto_reward": True}
