"""`make` and what a configuration says of a sandbox."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.envs import samples
from tests.envs.local_sandbox import LocalSandbox

from agentenv.config import load
from agentenv.envs import SandboxEnv, SandboxVectorEnv, make
from agentenv.envs.handle import EnvTimeouts, SandboxSettings
from agentenv.envs.opening import settings_of, timeouts_of
from agentenv.isolation import Resources


def test_what_a_configuration_says() -> None:
    environment = load(
        {
            "environment": {
                "name": "basic_rl_env",
                "resources": {"cpu": 1, "memory": "64MiB", "storage": "10MB", "pids": 50},
                "network": {"enabled": True, "ports": [8080]},
                "env": {"LANG": "C"},
                "timeouts": {"startup": "10s", "step": "5s"},
            }
        }
    ).environment
    assert settings_of(environment) == SandboxSettings(
        resources=Resources(1, 64 << 20, 10_000_000, 50),
        network=True,
        ports=(8080,),
        env={"LANG": "C"},
        metadata={"environment": "basic_rl_env"},
    )
    assert timeouts_of(environment) == EnvTimeouts(startup=10.0, step=5.0)


def test_one_or_many_by_name_or_from_a_file(stand_in: Callable[[], LocalSandbox], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"environment:\n  name: {samples.__file__}:Counter\n  options: {{length: 2}}\n")
    with make(str(config), factory=stand_in) as one:
        assert isinstance(one, SandboxEnv)
        assert one.call("length") == 2
    many = make(load(config).environment, 2, factory=stand_in, options={"length": 7})
    assert isinstance(many, SandboxVectorEnv)
    assert many.get_attr("length") == (7, 7)
    many.close()
