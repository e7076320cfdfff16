"""What a conversation with an agent can end with; the sandbox's handle turns these into the errors that users see."""

from __future__ import annotations

from agentenv.errors import AgentEnvError, InfrastructureError, ProtocolError


class AgentFailure(AgentEnvError):
    """The agent could not do what was asked; `code` is an errno's name (`ENOENT`) or `EPROTO`, `detail` the agent's own words."""

    def __init__(self, operation: str, code: str, detail: str) -> None:
        super().__init__(f"{operation}: {detail} ({code}).")
        self.operation = operation
        self.code = code
        self.detail = detail


class RequestTooLong(ProtocolError):
    """A request does not fit into a frame of the agent's protocol; nothing was sent."""


class ConnectionLost(InfrastructureError):
    """The stream to the agent ended while somebody needed it: its machine is gone, or one side broke the protocol."""
