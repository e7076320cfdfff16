"""NiceGUI, which draws the pages. A process has one NiceGUI, so that one server of a process at a time has a dashboard.

It is loaded when the first page is asked for: a server that nobody looks at neither starts slower nor is larger for it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from importlib import import_module

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from agentenv.errors import InfrastructureError
from agentenv.monitoring.logs import logger
from agentenv.server.dashboard.packing import Packed
from agentenv.server.dashboard.rendering import asset

_log = logger(__name__)

RECONNECT = 10.0
"""Seconds that a page is kept for a browser whose connection broke."""


class Host:
    """An ASGI application: the pages. `closing` ends it with the server."""

    def __init__(self, closing: AsyncExitStack) -> None:
        self._closing = closing
        self._loading = asyncio.Lock()
        self._app: ASGIApp | None = None
        self._warming: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or WebSocket. Raises `InfrastructureError` where another server of this process has the dashboard."""
        await (await self.load())(scope, receive, send)

    def warm_up(self) -> None:
        """Begins to load, for somebody who will soon need it."""
        if self._app is None and self._warming is None:
            self._warming = asyncio.create_task(self._warm())

    async def load(self) -> ASGIApp:
        """The application, ready to serve."""
        async with self._loading:
            if self._app is None:
                # Half a second of nothing but importing.
                await asyncio.to_thread(import_module, "agentenv.server.dashboard.pages")
                self._app = Packed(await self._start())
            return self._app

    async def _warm(self) -> None:
        try:
            await self.load()
        except InfrastructureError as error:
            _log.warning("dashboard.not_loaded", reason=str(error))

    async def _start(self) -> ASGIApp:
        from nicegui import core, ui

        if not core.app.is_stopped or core.app.middleware_stack is not None:
            raise InfrastructureError(
                "another server of this process has the dashboard.", remedy="Run each server in a process of its own."
            )
        app = FastAPI(openapi_url=None)
        ui.run_with(
            app,
            title="AgentENV",
            favicon=str(asset("icon.svg")),
            dark=None,
            tailwind=False,
            show_welcome_message=False,
            binding_refresh_interval=None,
            reconnect_timeout=RECONNECT,
            gzip_middleware_factory=None,  # `Packed` does it once.
        )
        await self._closing.enter_async_context(app.router.lifespan_context(app))
        self._closing.push_async_callback(core.sio.shutdown)
        return app
