"""Templates that AgentENV itself has a Dockerfile for; `agentenv build --recipe NAME` builds one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentenv.errors import NotFound
from agentenv.naming import near
from agentenv.node.templates import Startup

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Recipe:
    """A directory with a Dockerfile, and what its sandboxes start."""

    directory: Path
    startup: Startup


RECIPES = {
    "code-interpreter": Recipe(
        HERE / "code_interpreter",
        Startup(
            command="exec /opt/code-interpreter/python /opt/code-interpreter/server.py",
            ready="/opt/code-interpreter/python /opt/code-interpreter/server.py --check",
            timeout=120.0,
        ),
    )
}


def find(name: str) -> Recipe:
    """The recipe called so. Raises `NotFound` with a near match."""
    if name not in RECIPES:
        meant = near(name, RECIPES)
        raise NotFound(f"there is no recipe {name!r}.", remedy=f"Did you mean {meant!r}?" if meant else f"There are {', '.join(RECIPES)}.")
    return RECIPES[name]
