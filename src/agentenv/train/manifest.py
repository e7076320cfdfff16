"""A run's manifest: everything needed to run it again, and to see afterwards what was different."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from agentenv.config import Config
from agentenv.version import __version__

FORMAT = 1
PACKAGES = ("torch", "stable-baselines3", "gymnasium", "numpy")
EVALUATION_SEED_OFFSET = 1_000_003
"""Evaluations play other episodes than training does, and the same ones each time."""


def evaluation_seed(seed: int) -> int:
    """The seed of a run's evaluations."""
    return (seed + EVALUATION_SEED_OFFSET) % 2**31


def manifest(config: Config, *, seed: int, threads: int, config_file: Path | None) -> dict[str, Any]:
    """What is written as manifest.json before the first step. `seed` is the one used, drawn or configured."""
    return {
        "format": FORMAT,
        "created": time.time(),
        "command": shlex.join(sys.argv),
        "config": config.to_dict(),
        "config_sha256": config.digest(),
        "config_file": str(config_file) if config_file is not None else None,
        "git": git_state(config_file.parent if config_file is not None else Path.cwd()),
        "seeds": {"training": seed, "evaluation": evaluation_seed(seed)},
        "versions": versions(),
        "machine": machine() | {"torch_threads": threads},
    }


def versions() -> dict[str, str]:
    """Of Python, AgentENV and the packages whose numbers a run's results depend on."""
    found = {"python": platform.python_version(), "agentenv": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two flat mappings, a phrase each: "torch: 2.3.0 then, 2.4.1 now"."""
    names = sorted(recorded.keys() | now.keys())
    return [f"{name}: {recorded.get(name)} then, {now.get(name)} now" for name in names if recorded.get(name) != now.get(name)]


def machine() -> dict[str, Any]:
    """Where it ran; memory in bytes."""
    return {
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the repository around `folder` and whether files differ from it; None outside a repository or without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "dirty": bool(changed) if changed is not None else None,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())
