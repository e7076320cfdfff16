"""The server that `agentenv login` has noted, with the key for it: what is taken where neither is given or set in the environment.

The file is this user's alone: `agentenv/login.json` in the XDG configuration directory.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from agentenv.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Login:
    """A server's URL and an API key for it."""

    server: str
    api_key: str = field(repr=False)


def login_file() -> Path:
    """Where it is noted: `XDG_CONFIG_HOME`, by default ~/.config
    (https://specifications.freedesktop.org/basedir-spec/latest/)."""
    chosen = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(chosen) if chosen.startswith("/") else Path.home() / ".config"
    return base / "agentenv" / "login.json"


def saved_login() -> Login | None:
    """What was noted, if anything. Raises `ConfigError` for a file that cannot be used."""
    file = login_file()
    try:
        return Login(**json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot be used: {error}", file=str(file), remedy="Run `agentenv login` again.") from error


def save_login(login: Login) -> Path:
    """Notes a server and a key, in the place of what was there. Raises OSError."""
    file = login_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600, exist_ok=False)
    fresh.write_text(json.dumps(asdict(login)))
    fresh.replace(file)
    return file


def forget_login() -> bool:
    """Removes what was noted; whether there was something."""
    try:
        login_file().unlink()
    except FileNotFoundError:
        return False
    return True
