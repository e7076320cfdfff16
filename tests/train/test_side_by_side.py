"""Trainings as processes of their own: two on one machine, and what is left of one that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.conditions import needs_namespaces
from tests.train.doubles import settings

from agentenv.isolation.namespace.cgroups import CgroupTree

pytestmark = [needs_namespaces, pytest.mark.timeout(300)]  # two processes that load PyTorch on a busy machine


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("AGENTENV_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def start(folder: Path, max_steps: int, seed: int) -> subprocess.Popen[str]:
    config = settings(max_steps=max_steps, seed=seed, eval_episodes=1) | {"environment": {"name": "basic_rl_env"}}
    (folder / f"config-{seed}.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "agentenv.cli.main", "train", f"config-{seed}.yaml", "--json"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def groups_of(owners: list[str]) -> list[str]:
    return [name for owner, names in CgroupTree.discover().by_owner().items() if owner in owners for name in names]


def test_two_trainings_side_by_side_do_not_disturb_each_other(home: Path, tmp_path: Path) -> None:
    both = [start(tmp_path, 64, seed) for seed in (1, 2)]
    outputs = [process.communicate(timeout=250) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    results = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    assert [(result["state"], result["steps"], result["infra_errors"]) for result in results] == [("finished", 64, 0)] * 2
    assert results[0]["run"] != results[1]["run"]
    assert list((home / "owners").glob("o*")) == []


def test_of_a_killed_trainer_nothing_is_left_after_the_next_command(home: Path, tmp_path: Path) -> None:
    trainer = start(tmp_path, 10_000_000, 1)
    assert trainer.stdout is not None
    for line in trainer.stdout:
        if '"step"' in line:
            break
    (owner,) = (home / "owners").glob("o*")
    sandboxes = [path for path in owner.iterdir() if path.name.startswith("sb")]
    assert len(sandboxes) >= 2
    trainer.send_signal(signal.SIGKILL)
    trainer.communicate()
    listed = subprocess.run([sys.executable, "-m", "agentenv.cli.main", "ls", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(listed.stdout) == []
    assert list((home / "owners").glob("o*")) == []
    assert groups_of([owner.name]) == []
    assert processes_with(str(home)) + processes_with(owner.name) == []


def processes_with(text: str) -> list[str]:
    """The command lines of other processes that name `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.append(command)
    return found
