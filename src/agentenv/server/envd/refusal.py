"""How the routes of envd that are no calls say no: a status, and JSON with `code` and `message`."""

from __future__ import annotations

import json

from agentenv.errors import AgentEnvError
from agentenv.server.envd.connect import ConnectError
from agentenv.server.envd.connect.exchange import Exchange
from agentenv.server.envd.faults import explain, status_of


class Refused(Exception):
    """A request that is not answered, with the status that says why."""

    def __init__(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


async def refuse(exchange: Exchange, error: Refused | ConnectError | AgentEnvError | OSError) -> None:
    """Answers a request that failed. Where the answer has begun already, its missing end tells the client."""
    if exchange.gone or exchange.begun:
        return
    if isinstance(error, Refused):
        status, message, headers = error.status, error.message, error.headers
    else:
        status, headers = status_of(error), ()
        message = (error if isinstance(error, ConnectError) else explain(error)).message
    await exchange.answer(status, json.dumps({"code": status, "message": message}).encode(), "application/json", *headers)
