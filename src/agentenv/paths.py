"""Where things are: AgentENV itself; its state, in one directory chosen by `AGENTENV_HOME` or by who runs it; the sandboxes."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).parent
"""The installed package, as the running Python names it."""

SERVER_VARIABLE = "AGENTENV_SERVER"
"""The environment variable with the address of the server on which sandboxes are made; without it they are on this machine."""

KEY_VARIABLE = "AGENTENV_API_KEY"
"""The environment variable with the key for that server."""

HERE = "local"
"""In the place of a server's address: this machine."""


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
