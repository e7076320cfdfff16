"""The example trains in machines of their own when one line says so, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conditions import more_in_soak
from tests.machines import debian_or_skip, obtain_or_skip, runsc_or_skip, shared_cache, shared_store

from agentenv.isolation import probe_all
from agentenv.monitoring import RunDirectory
from agentenv.train import SilentProgress, train

EXAMPLE = Path(__file__).parents[2] / "examples" / "basic" / "config.yaml"
NAME = '  name: "basic_rl_env"\n'


@pytest.fixture(params=more_in_soak(["gvisor"], ["qemu"]))
def isolation(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend with a kernel of its own for each environment that works here, and an AGENTENV_HOME with its default image."""
    name = str(request.param)
    monkeypatch.setenv("AGENTENV_HOME", str(shared_cache() if name == "qemu" else tmp_path / "home"))
    if name == "qemu":
        monkeypatch.setenv("AGENTENV_ARTEFACTS", str(shared_store().directory))
        obtain_or_skip("kernel")
        obtain_or_skip("qemu")
        debian_or_skip()
    else:
        runsc_or_skip(monkeypatch)
    probe = next(probe for probe in probe_all() if probe.backend == name)
    if not probe.usable:
        pytest.skip(f"no {name} here: {probe.reason}")
    return name


@pytest.mark.timeout(1200)
def test_the_example_trains_unchanged_but_for_one_line(isolation: str, tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert text.count(NAME) == 1
    config = tmp_path / "config.yaml"
    config.write_text(text.replace(NAME, f"{NAME}  isolation: {isolation}\n"))
    result = train(config, max_steps=256, num_envs=2, run_dir=tmp_path, progress=SilentProgress())
    assert (result.state, result.infra_errors) == ("finished", 0)
    run = RunDirectory.open(result.run)
    assert run.manifest()["config"]["environment"]["isolation"] == isolation
    assert next(len(event["sandboxes"]) for event in run.events() if event["event"] == "training.environments") == 2
