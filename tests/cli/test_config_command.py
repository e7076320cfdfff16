"""`agentenv config`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Agentenv = Callable[..., subprocess.CompletedProcess[str]]


def write(workplace: Path, text: str) -> None:
    (workplace / "c.yaml").write_text(text)


def test_a_good_file(agentenv: Agentenv, workplace: Path) -> None:
    write(workplace, "environment: {resources: {memory: 64MB}}\n")
    assert agentenv("config", "check", "c.yaml").stdout == "c.yaml: OK\n"
    data = json.loads(agentenv("config", "check", "c.yaml", "--json").stdout)
    assert (data["ok"], data["file"], len(data["digest"])) == (True, "c.yaml", 64)


def test_a_bad_file_shows_every_mistake(agentenv: Agentenv, workplace: Path) -> None:
    write(workplace, "environment:\n  nmae: x\n  network: {ports: [1, 1]}\n")
    done = agentenv("config", "check", "c.yaml")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "Error: c.yaml:2: environment.nmae: is no known key. Did you mean `name`?",
        "c.yaml:3: environment.network.ports: port 1 stands there twice. Write each port once.",
    ]
    problems = json.loads(agentenv("config", "check", "c.yaml", "--json").stdout)["error"]["problems"]
    assert [(problem["line"], problem["key"]) for problem in problems] == [(2, "environment.nmae"), (3, "environment.network.ports")]


def test_unknown_names_are_found_before_a_training_starts(agentenv: Agentenv, workplace: Path) -> None:
    write(workplace, "environment:\n  name: basic_rl_enw\n  isolation: namespaces\ntraining: {algorithm: PPQ, max_steps: 1}\n")
    pytest.importorskip("stable_baselines3")
    lines = agentenv("config", "check", "c.yaml").stderr.splitlines()
    assert [line.partition(": there is no")[0] for line in lines] == [
        "Error: c.yaml:2: environment.name",
        "c.yaml:3: environment.isolation",
        "c.yaml:4: training.algorithm",
    ]
    assert "basic_rl_env" in lines[0]
    assert "Did you mean namespace?" in lines[1]
    assert "PPO" in lines[2]


def test_show_gives_the_full_meaning(agentenv: Agentenv, workplace: Path) -> None:
    write(workplace, "environment: {resources: {memory: 64MB}, timeouts: {step: 1m}}\n")
    shown = yaml.safe_load(agentenv("config", "show", "c.yaml").stdout)
    assert shown["environment"]["resources"]["memory"] == 64_000_000
    assert shown["environment"]["timeouts"] == {"startup": 60.0, "shutdown": 5.0, "reset": 60.0, "step": 60.0}
    assert shown == json.loads(agentenv("config", "show", "c.yaml", "--json").stdout)
    write(workplace, yaml.safe_dump(shown))
    assert yaml.safe_load(agentenv("config", "show", "c.yaml").stdout) == shown


def test_schema(agentenv: Agentenv) -> None:
    schema = json.loads(agentenv("config", "schema").stdout)
    assert set(schema["properties"]) == {"environment", "training", "distributed_training"}
