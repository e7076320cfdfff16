"""What the server keeps of one sandbox for E2B's clients, as envd keeps it inside of the sandboxes of E2B."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from agentenv.errors import AgentEnvError, InfrastructureError
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.link import Link
from agentenv.sandbox.sandbox import link_of
from agentenv.server.envd.connect import Call, Code, ConnectError
from agentenv.server.envd.faults import explain
from agentenv.server.envd.programs import Programs
from agentenv.server.envd.users import User, Users
from agentenv.server.envd.watching import Replaced, Watchers

DEFAULT_USER = "user"
KEEPALIVE = 90.0
"""Seconds of silence after which a stream says that it lives, where the client does not ask for it more often."""


class Session:
    """One sandbox: its users, processes and watchers, and the defaults for those who say nothing of them."""

    def __init__(
        self, sandbox: AsyncSandbox, *, user: str = DEFAULT_USER, workdir: str | None = None, envs: Mapping[str, str] | None = None
    ) -> None:
        self.sandbox = sandbox
        self.link: Link = link_of(sandbox)
        self.users = Users(self.link, only_root=not sandbox.capabilities.users)
        self.programs = Programs(self.link)
        self.watchers = Watchers()
        self.replaced = Replaced()
        self.default_user = user
        self.default_workdir = workdir
        self.processor_sample: tuple[float, float] | None = None
        """When the use of processors was last asked for: the seconds that the sandbox was up then, and those that it had computed."""
        self.envs = dict(envs or {})
        """Variables that every process gets which E2B's clients start, beyond those of the sandbox itself."""

    def all_envs(self) -> dict[str, str]:
        """The variables that a process gets without asking."""
        return {**self.link.host.request.env, **self.envs}

    async def caller(self, call: Call) -> User:
        """The user in whose name a call is made: that of its Basic authentication, which has no password, or the default one."""
        return await self.users.find(basic_user(call.headers) or self.default_user)

    async def meaning(self, error: AgentEnvError | OSError) -> AgentEnvError | OSError:
        """A fault with its cause: a stream that broke may mean that the sandbox is gone, and why."""
        return await self.link.explain(error) if isinstance(error, InfrastructureError | OSError) else error

    async def explain(self, error: AgentEnvError | OSError) -> ConnectError:
        """A fault as a caller is told of it."""
        return explain(await self.meaning(error))


def basic_user(headers: Mapping[str, str]) -> str | None:
    """The user that an Authorization header names. Raises `ConnectError` for a Basic one that cannot be read."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ConnectError(Code.UNAUTHENTICATED, "the header Authorization is no Basic authentication") from error
    return text.partition(":")[0] or None


def keepalive_of(headers: Mapping[str, str]) -> float:
    """The seconds of the header Keepalive-Ping-Interval."""
    text = headers.get("keepalive-ping-interval", "")
    return float(text) if text.isascii() and text.isdigit() and 0 < len(text) < 6 and int(text) else KEEPALIVE
