"""Runs what the README shows: every command, and both Python examples, in an empty folder as a new user would."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conditions import needs_namespaces

REPOSITORY = Path(__file__).parent.parent
README = (REPOSITORY / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "sh"]
PYTHON = [text for language, text in BLOCKS if language == "python"]
CONFIG = next(text for language, text in BLOCKS if language == "yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with the README's configuration in it."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def run(script: str, folder: Path) -> str:
    """Runs shell lines with the `agentenv` of this environment; its state is of its own."""
    tools = folder / "bin"
    tools.mkdir()
    (tools / "agentenv").symlink_to(Path(sys.executable).parent / "agentenv")
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "AGENTENV_HOME": str(folder / "state"), "PATH": path, "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_block_clones_and_names_targets_that_exist(folder: Path) -> None:
    clone, *targets = SHELL[0].splitlines()
    here = re.sub(r"https://\S+", str(REPOSITORY), clone).replace("cd agentenv", f"cd {REPOSITORY.name}")
    commands = [line.split("#")[0].strip() for line in targets]
    assert commands == ["make run", "make test"]
    # Both targets run for minutes; here make says what they would do, and the one command behind `make run` has a test of its own.
    planned = run("\n".join([here, *(f"{command} --dry-run --always-make" for command in commands)]), folder)
    assert "agentenv train examples/basic/config.yaml" in planned
    assert "pytest" in planned


@needs_namespaces
@pytest.mark.timeout(600)  # a minute of two cores, which other work may share
def test_training_from_one_file(folder: Path) -> None:
    printed = run(SHELL[1], folder)
    assert "Done: PPO on basic_rl_env" in printed
    assert list((folder / "runs").glob("*/curve.png"))


@needs_namespaces
def test_the_command_line(folder: Path) -> None:
    printed = run(SHELL[2], folder)
    assert "greeting" in printed
    assert printed.count("ended") == 4
    assert not list((folder / "state" / "snapshots" / "tree").glob("*.json"))


@needs_namespaces
def test_a_server_is_started_and_used(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    printed = run(f"export XDG_CONFIG_HOME={folder}\n{SHELL[3].replace('8700', str(port))}", folder)
    assert "Logged in at" in printed
    assert printed.count("ended") == 1
    assert "Forgotten." in printed


def test_no_block_is_forgotten() -> None:
    assert (len(SHELL), len(PYTHON)) == (4, 2)


@needs_namespaces
@pytest.mark.parametrize("example", PYTHON, ids=["sandbox", "environment"])
def test_python_examples(example: str, folder: Path) -> None:
    (folder / "example.py").write_text(example)
    printed = run(f"{sys.executable} example.py", folder)
    if "fork" in example:
        assert printed.startswith("1\n2\n3\n")
        assert printed.count("sees 3 1 2") == 3


def test_pictures_and_links_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (REPOSITORY / target).exists(), target
