"""A terminal in a sandbox: what is typed goes there, what the program shows comes here, at the pace of the slower side."""

from __future__ import annotations

import asyncio
import codecs
import contextlib

from nicegui import background_tasks, ui
from nicegui.events import XtermDataEventArguments, XtermResizeEventArguments

from agentenv.errors import AgentEnvError
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.command_handle import AsyncCommandHandle
from agentenv.sandbox.sandbox import link_of
from agentenv.server.dashboard.content import running
from agentenv.server.dashboard.viewer import Viewer
from agentenv.server.envd.users import Users
from agentenv.server.fleet import SandboxView

PIECE = 64 << 10
"""Characters that are on their way to the browser at most."""
PATIENCE = 30.0
"""Seconds after which a browser that does not take what it is sent counts as gone."""
LOOK = {"fontSize": 13, "cursorBlink": True, "scrollback": 5000, "theme": {"background": "#101214", "foreground": "#dfe3e6"}}


class Terminal:
    """One terminal on the page. It ends with the page, or with its program."""

    def __init__(self, viewer: Viewer, sandbox: SandboxView) -> None:
        self._viewer = viewer
        self._sandbox = sandbox
        self._typed: asyncio.Queue[str | tuple[int, int]] = asyncio.Queue()
        self._program: AsyncCommandHandle | None = None
        with ui.element("div").classes("terminal"):
            self._screen = ui.xterm(LOOK, on_data=self._type, on_resize=self._resize)
        ui.html('<p class="soft">F6 leaves the terminal.</p>', sanitize=False)

    async def start(self) -> None:
        """Starts the shell and shows it until it ends. Raises what `content.running` raises."""
        with self._viewer.acting("open a terminal", self._sandbox.id):
            handle = await running(self._viewer, self._sandbox.id)
            size = await self._fit()
            self._program = await self._shell(handle, size)
        task = background_tasks.create(self._serve(self._program))
        self._screen.client.on_delete(task.cancel)
        self._screen.run_terminal_method("focus")

    async def _shell(self, handle: AsyncSandbox, size: tuple[int, int]) -> AsyncCommandHandle:
        view = self._sandbox
        account = await Users(link_of(handle), only_root=not handle.capabilities.users).find(view.user)
        return await handle.pty.create(size, user=account.uid, cwd=view.cwd or account.home, envs={"HOME": account.home, **view.env})

    async def _fit(self) -> tuple[int, int]:
        ui.run_javascript(f"addEventListener('resize', () => getElement({self._screen.id})?.fit())")
        await self._screen.run_method("fit", timeout=PATIENCE)
        return await self._screen.run_method("getRows", timeout=PATIENCE), await self._screen.run_method("getColumns", timeout=PATIENCE)

    async def _serve(self, program: AsyncCommandHandle) -> None:
        with self._viewer.services.fleet.in_use(self._sandbox.id):
            typing = asyncio.create_task(self._pass_typed(program))
            try:
                await self._pass_shown(program)
            except (AgentEnvError, OSError) as error:
                self._screen.writeln(f"\r\n{error}")
            except TimeoutError:
                return  # The browser is gone; the page follows it.
            finally:
                typing.cancel()
                self._program = None
                with contextlib.suppress(AgentEnvError):  # The sandbox may have ended before it.
                    await program.kill()

    async def _pass_shown(self, program: AsyncCommandHandle) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        waiting: asyncio.Queue[str | None] = asyncio.Queue(maxsize=16)

        async def read() -> None:
            try:
                async for _, _, data in program:
                    await waiting.put(decoder.decode(data or b""))
            finally:
                await waiting.put(None)

        reading = asyncio.create_task(read())
        try:
            over = False
            while not over:
                text = await waiting.get()
                over, shown = text is None, text or ""
                while not over and len(shown) < PIECE and not waiting.empty():
                    text = waiting.get_nowait()
                    over, shown = text is None, shown + (text or "")
                # Its answer is the sign that the browser has taken it.
                await self._screen.run_method("write", shown, timeout=PATIENCE)
            await reading
            self._screen.writeln("\r\n\x1b[2mThe program has ended.\x1b[0m")
        finally:
            reading.cancel()

    async def _pass_typed(self, program: AsyncCommandHandle) -> None:
        while True:
            typed = await self._typed.get()
            if isinstance(typed, str):
                await program.send_stdin(typed)
            else:
                await program.resize(*typed)

    def _type(self, event: XtermDataEventArguments) -> None:
        if self._program is not None and self._viewer.acts:
            self._typed.put_nowait(event.data)

    def _resize(self, event: XtermResizeEventArguments) -> None:
        if self._program is not None:
            self._typed.put_nowait((event.rows, event.cols))
