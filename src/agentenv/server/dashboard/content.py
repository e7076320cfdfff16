"""Files that the browser fetches or sends by itself: those of sandboxes, streamed both ways, and the artefacts of training runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import PurePosixPath
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentenv.errors import AgentEnvError, InvalidState
from agentenv.sandbox import AsyncSandbox
from agentenv.server.dashboard.viewer import Viewer, viewer_of
from agentenv.server.faults import response_of
from agentenv.server.fleet import State
from agentenv.server.trainings.reading import artefact, find


async def running(viewer: Viewer, sandbox: str) -> AsyncSandbox:
    """A sandbox of the viewer's that runs: looking at a paused one does not wake it. Raises `NotFound`, `InvalidState`."""
    fleet = viewer.services.fleet
    view = fleet.owned(viewer.tenant, sandbox)
    if view.state is not State.RUNNING:
        raise InvalidState("the sandbox is paused.", remedy="Resume it first.")
    return await fleet.running(view.id)


async def download(request: Request) -> Response:
    """A file of a sandbox. It is never shown by the browser as a page, whatever is in it."""
    viewer, sandbox, path = viewer_of(request), request.path_params["sandbox"], request.query_params.get("path", "")
    try:
        handle = await running(viewer, sandbox)
        info = await handle.files.get_info(path, follow=True)
        pieces = aiter(await handle.files.read(path, "stream"))
        first = await anext(pieces, b"")
    except AgentEnvError as error:
        return response_of(error)

    async def body() -> AsyncIterator[bytes]:
        with viewer.services.fleet.in_use(sandbox):
            yield first
            async for piece in pieces:
                yield piece

    # The length is not promised: the file may change while it is read.
    return StreamingResponse(body(), media_type="application/octet-stream", headers=_attachment(info.name))


async def upload(request: Request) -> Response:
    """Writes a file of a sandbox, as it comes."""
    viewer, sandbox, path = viewer_of(request), request.path_params["sandbox"], request.query_params.get("path", "")
    try:
        with viewer.acting("upload a file", sandbox):
            handle = await running(viewer, sandbox)
            with viewer.services.fleet.in_use(sandbox):
                written = await handle.files.write(path, request.stream())
    except AgentEnvError as error:
        return response_of(error)
    return JSONResponse({"path": written.path, "size": written.size})


async def run_artefact(request: Request) -> Response:
    """A file of a training run."""
    viewer = viewer_of(request)
    try:
        viewer.require_overseer()
        run = find(viewer.services.settings.runs, request.path_params["run"])
        path = artefact(run, request.path_params["path"])
    except AgentEnvError as error:
        return response_of(error)
    inline = path.suffix == ".png"
    return FileResponse(path, media_type="image/png") if inline else FileResponse(path, headers=_attachment(path.name))


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(PurePosixPath(name).name, safe='')}"}


ROUTES = (
    Route("/sandboxes/{sandbox}/file", download, methods=["GET"]),
    Route("/sandboxes/{sandbox}/file", upload, methods=["PUT"]),
    Route("/runs/{run}/files/{path:path}", run_artefact, methods=["GET"]),
)
"""Where they are, below /dashboard."""
