"""envd on the host: what the E2B SDKs reach at port 49983 of a sandbox, served without a process in it.

Routes and messages are those of E2B's own: https://github.com/e2b-dev/infra/blob/main/packages/envd/spec/envd.yaml and the .proto files
beside it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from agentenv.errors import AgentEnvError
from agentenv.server.envd.admission import admit
from agentenv.server.envd.connect import Code, ConnectError
from agentenv.server.envd.connect.exchange import Exchange
from agentenv.server.envd.file_routes import FileRoutes
from agentenv.server.envd.filesystem_service import FilesystemService
from agentenv.server.envd.process_service import ProcessService
from agentenv.server.envd.refusal import Refused, refuse
from agentenv.server.envd.session import Session
from agentenv.server.envd.settings import apply_settings
from agentenv.server.envd.usage import measured

PORT = 49_983
"""Where the SDKs expect envd in a sandbox."""

Route = Callable[[Exchange, dict[str, str]], Awaitable[None]]

_NOT_HERE = {
    "/files/compose": "files are not put together here; write the whole file, or use `cat`",
    "/freeze": "processes are stopped by pausing the sandbox",
    "/unfreeze": "processes go on by resuming the sandbox",
    "/fsfreeze": "files are held still by the server itself while it takes a snapshot",
    "/fsthaw": "files are held still by the server itself while it takes a snapshot",
    "/collapse": "memory is the host's to arrange",
    "/upgrade": "there is no envd in the sandbox that could be replaced",
}


class Envd:
    """An ASGI application for one sandbox. `token` is its access token; None lets all in."""

    def __init__(self, session: Session, token: str | None) -> None:
        self._session = session
        self._token = token
        self._services = {service.name: service for service in (ProcessService(session).service(), FilesystemService(session).service())}
        files = FileRoutes(session)
        self._routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/envs"): self._envs,
            ("POST", "/init"): self._init,
            ("GET", "/files"): files.download,
            ("POST", "/files"): files.upload,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; `path` is envd's own."""
        exchange = Exchange(scope, receive, send)
        method, path = scope["method"], scope["path"]
        try:
            query = query_of(scope)
            admit(self._token, method, path, exchange.headers, query)
            service = self._services.get(path[1:].partition("/")[0])
            if service is not None:
                await service(scope, receive, send)
                return
            route = self._routes.get((method, path))
            if route is None:
                raise self._unknown(method, path)
            await route(exchange, query)
        except (Refused, ConnectError) as error:
            await refuse(exchange, error)
        except (AgentEnvError, OSError) as error:
            await refuse(exchange, await self._session.meaning(error))

    def _unknown(self, method: str, path: str) -> Refused:
        if path in _NOT_HERE:
            return Refused(501, f"{path} is not supported: {_NOT_HERE[path]}")
        allowed = [name for name, known in self._routes if known == path]
        if allowed:
            return Refused(405, f"{path} does not take {method}", ("allow", ", ".join(allowed)))
        return Refused(404, f"there is no {path} here")

    async def _health(self, exchange: Exchange, query: dict[str, str]) -> None:
        self._session.link.require_running()
        await exchange.begin(204, ("cache-control", "no-store"))
        await exchange.send(b"", last=True)

    async def _metrics(self, exchange: Exchange, query: dict[str, str]) -> None:
        await self._json(exchange, {"ts": int(time.time()), **await measured(self._session)})

    async def _envs(self, exchange: Exchange, query: dict[str, str]) -> None:
        await self._json(exchange, self._session.all_envs())

    async def _init(self, exchange: Exchange, query: dict[str, str]) -> None:
        try:
            wishes = json.loads(await exchange.body() or b"{}")
        except ValueError as error:
            raise ConnectError(Code.INVALID_ARGUMENT, f"the body is no JSON: {error}") from error
        if not isinstance(wishes, dict):
            raise ConnectError(Code.INVALID_ARGUMENT, "the body is no JSON object")
        apply_settings(self._session, wishes, token=self._token)
        await exchange.begin(204, ("cache-control", "no-store"))
        await exchange.send(b"", last=True)

    async def _json(self, exchange: Exchange, content: object) -> None:
        await exchange.answer(200, json.dumps(content).encode(), "application/json", ("cache-control", "no-store"))


def query_of(scope: Scope) -> dict[str, str]:
    """The parameters of a request's query, of each name the last."""
    return dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
