"""Settings from files, variables and flags."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentenv
from agentenv.config.problems import InvalidConfig
from agentenv.server.settings import ServerSettings, load_settings, setting_keys, variable


def test_without_anything_the_defaults_hold() -> None:
    assert load_settings(environment={}) == ServerSettings()


def test_the_later_source_is_the_stronger(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("host: 0.0.0.0\nport: 1000\nsandboxes: {internet: false}\nidle: {pause_after: 10m}\n")
    environment = {"AGENTENV_PORT": "2000", "AGENTENV_IDLE_PAUSE_AFTER": "20m", "AGENTENV_HOME": "/somewhere"}
    settings = load_settings(file, environment=environment, flags={"port": 3000, "domain": None})
    assert (settings.host, settings.port, settings.idle.pause_after) == ("0.0.0.0", 3000, 1200.0)
    assert settings.sandboxes.internet is False


def test_every_setting_has_a_variable() -> None:
    names = {variable(key) for key in setting_keys()}
    assert {"AGENTENV_PORT", "AGENTENV_SANDBOXES_RESOURCES_MEMORY", "AGENTENV_POOLS", "AGENTENV_TLS_KEY"} <= names
    assert len(names) == len(list(setting_keys()))


def test_a_mapping_can_be_a_variable() -> None:
    assert load_settings(environment={"AGENTENV_POOLS": '{"base": 3}'}).pools == {"base": 3}


def test_what_is_wrong_is_named_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("port: 80\nshutdown:\n  policy: dran\nhots: x\n")
    with pytest.raises(InvalidConfig) as caught:
        load_settings(file, environment={"AGENTENV_CAPACITY_STARTING": "0"})
    told = str(caught.value).splitlines()
    assert any(line.startswith(f"{file}:3: shutdown.policy: ") and "Did you mean `drain`?" in line for line in told)
    assert any(line.startswith(f"{file}:4: hots: is no known key") for line in told)
    assert any(line.startswith("AGENTENV_CAPACITY_STARTING: capacity.starting: ") for line in told)


def test_a_variable_that_is_no_yaml_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="AGENTENV_POOLS"):
        load_settings(environment={"AGENTENV_POOLS": "{base: "})


def test_the_domain_follows_the_port() -> None:
    assert load_settings(environment={}, flags={"port": 9}).public_domain == "localhost:9"
    assert load_settings(environment={}, flags={"domain": "box.example"}).public_domain == "box.example"


def test_the_documentation_has_every_setting() -> None:
    text = (Path(agentenv.__file__).parents[2] / "docs" / "server.md").read_text()
    table = text.split("| setting | default | |")[1].split("\n\n")[0]
    for key in setting_keys():
        *above, last = map(str, key)
        row = next((line for line in table.splitlines() if ".".join(above) in line and last in line), None)
        assert row is not None, f"{'.'.join(map(str, key))} is not in docs/server.md"
