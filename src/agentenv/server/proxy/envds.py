"""The envd of each sandbox that somebody has spoken to, for as long as its machine lives."""

from __future__ import annotations

from agentenv.sandbox import AsyncSandbox
from agentenv.server.envd.app import Envd
from agentenv.server.envd.session import Session
from agentenv.server.fleet import SandboxView


class Envds:
    """Made when they are first asked for. One belongs to one handle: a sandbox that started anew from its files gets a new one."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[AsyncSandbox, Envd]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, sandbox: AsyncSandbox, view: SandboxView) -> Envd:
        """The envd of a running sandbox."""
        handle, envd = self._known.get(view.id, (None, None))
        if envd is None or handle is not sandbox:
            self._forget_the_dead()
            envd = Envd(Session(sandbox, user=view.user, workdir=view.cwd, envs=view.env), view.envd_access_token)
            self._known[view.id] = (sandbox, envd)
        return envd

    def _forget_the_dead(self) -> None:
        for sandbox_id in [sandbox_id for sandbox_id, (handle, _) in self._known.items() if handle.state == "dead"]:
            del self._known[sandbox_id]
