"""What all pages have in common: the bar at the top, handlers that tell of errors, and blocks that are sent only when they have changed."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec

from nicegui import ui
from starlette.requests import Request

from agentenv.errors import AgentEnvError, Unauthenticated
from agentenv.server.dashboard.rendering import asset, render
from agentenv.server.dashboard.viewer import Viewer, viewer_of

Arguments = ParamSpec("Arguments")
Handler = Callable[Arguments, Awaitable[object] | object]

ROOT = "/dashboard"


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the bar; `key` is typed after `g` to go there."""

    name: str
    path: str
    key: str
    overseers: bool = False


SECTIONS = (
    Section("Sandboxes", "/", "s"),
    Section("Templates", "/templates", "t"),
    Section("Runs", "/runs", "r", overseers=True),
    Section("Keys", "/keys", "k"),
)


class Fragment(ui.html):
    """HTML from a template of `fragments/`."""

    def __init__(self, template: str, **values: object) -> None:
        # Everything in it was escaped when it was rendered.
        super().__init__(render(template, **values), sanitize=False)
        self._template = template

    def show(self, **values: object) -> None:
        """Renders it anew; the browser hears of it only if anything is different."""
        self.set_content(render(self._template, **values))


@contextmanager
def frame(request: Request, title: str, section: str) -> Iterator[Viewer]:
    """A page with the bar; its content is made within the block. Errors on the way are shown in its place."""
    viewer = viewer_of(request)
    principal = viewer.principal
    sections = [entry for entry in SECTIONS if principal.oversees or not entry.overseers]
    ui.page_title(f"{title} · AgentENV")
    ui.colors(primary="#0a6c8f")
    ui.add_head_html(f"<style>{asset('app.css')}</style><script>{asset('app.js')}</script>")
    # The bar is there before any of NiceGUI is loaded.
    ui.add_body_html(
        render(
            "bar.html",
            root=ROOT,
            sections=sections,
            current=section,
            tenant=principal.tenant.name,
            role=principal.role,
            key=principal.key_name,
        )
    )
    with ui.element("main").classes("page").props("id=content"):
        try:
            yield viewer
        except Unauthenticated:
            raise
        except AgentEnvError as error:
            ui.label(str(error)).classes("empty")


def guarded(handler: Handler[Arguments]) -> Callable[Arguments, Awaitable[None]]:
    """A handler of an event whose errors are shown to who caused it; one who is no longer signed in is led to the form."""

    @wraps(handler)  # NiceGUI looks whether it takes an event.
    async def run(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        try:
            result = handler(*arguments, **named)
            if inspect.iscoroutine(result):  # A dialog can be awaited as well, and that would open it.
                await result
        except Unauthenticated:
            ui.navigate.to("/login")
        except AgentEnvError as error:
            ui.notify(str(error), type="negative", multi_line=True, close_button="Close")

    return run


def every(seconds: float, handler: Callable[[], Awaitable[object] | object]) -> ui.timer:
    """Calls `handler` again and again while the page is open, and stops when there is nothing more to show."""
    timer: ui.timer

    async def run() -> None:
        try:
            result = handler()
            if inspect.iscoroutine(result):  # A dialog can be awaited as well, and that would open it.
                await result
        except Unauthenticated:
            timer.cancel()
            ui.navigate.to("/login")
        except AgentEnvError as error:
            timer.cancel()
            ui.notify(str(error), type="warning", timeout=0, close_button="Close")

    timer = ui.timer(seconds, run, immediate=False)
    return timer


def button(text: str, handler: Callable[[], Awaitable[object] | object], *, kind: str = "") -> ui.button:
    """A button; `kind` is "main" for what one mostly wants, "grave" for what cannot be undone."""
    return ui.button(text, on_click=guarded(handler), color=None).props("flat no-caps no-wrap").classes(f"act {kind}")


async def confirmed(question: str, action: str) -> bool:
    """Whether whoever looks at the page means it."""
    with ui.dialog() as dialog, ui.card():
        ui.label(question)
        with ui.element("div").classes("line"):
            ui.button(action, on_click=lambda: dialog.submit(True), color=None).props("flat no-caps autofocus").classes("act grave")
            ui.button("Leave it", on_click=lambda: dialog.submit(False), color=None).props("flat no-caps").classes("act")
    answer = await dialog
    dialog.delete()
    return bool(answer)
