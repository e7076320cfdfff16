"""Where the two native programs lie: built into the package by the wheel, or by `python native/build.py` in a checkout."""

from __future__ import annotations

import os
from pathlib import Path

from agentenv.errors import AgentEnvError
from agentenv.paths import PACKAGE

PROGRAMS = ("agentenv-agent", "agentenv-launch")
FOLDER = PACKAGE.resolve() / "_native"


def binary(name: str) -> Path:
    """The path of a native program of the package (`agentenv-agent` or `agentenv-launch`).

    Raises `AgentEnvError` with a remedy where it has not been built, and `ValueError` for a name that is none of ours.
    """
    if name not in PROGRAMS:
        raise ValueError(f"{name!r} is no native program of AgentENV; there are {', '.join(PROGRAMS)}")
    path = FOLDER / name
    if not os.access(path, os.X_OK):
        raise AgentEnvError(
            f"the native program {name} is missing from the installed package.",
            remedy="Run `python native/build.py` in the checkout (needs a C compiler or `pip install ziglang`), or install a wheel.",
        )
    return path
