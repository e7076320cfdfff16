"""Where AgentENV itself lies, and where it keeps its state: one directory, chosen by `AGENTENV_HOME` or by who runs it."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).parent
"""The installed package, as the running Python names it."""


def state_home() -> Path:
    """The directory of all state that outlives a process; not created here.

    `AGENTENV_HOME` where it is set, /var/lib/agentenv for root, else `agentenv` in the XDG state directory
    (https://specifications.freedesktop.org/basedir-spec/latest/): `XDG_STATE_HOME`, by default ~/.local/state.
    """
    if chosen := os.environ.get("AGENTENV_HOME"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/agentenv")
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return base / "agentenv"
