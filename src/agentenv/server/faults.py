"""What an error is over HTTP: a status, and the body `{code, message}` that E2B's clients read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from agentenv.errors import (
    AgentEnvError,
    BackendUnavailable,
    CapabilityError,
    ConfigError,
    Forbidden,
    IdempotencyMismatch,
    InfrastructureError,
    InvalidState,
    LimitReached,
    NotFound,
    QuotaExceeded,
    SandboxDied,
    SandboxFileError,
    SandboxPaused,
    StartupTimeout,
    Unauthenticated,
    Unsupported,
)
from agentenv.monitoring.logs import logger
from agentenv.node.control import describe

STATUS: Mapping[type[AgentEnvError], int] = {
    AgentEnvError: 400,
    ConfigError: 400,
    CapabilityError: 400,
    Unsupported: 501,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    InvalidState: 409,
    # As the draft of the header says (draft-ietf-httpapi-idempotency-key-header), and E2B's clients expect.
    IdempotencyMismatch: 422,
    SandboxPaused: 410,
    SandboxFileError: 400,
    QuotaExceeded: 429,
    LimitReached: 507,
    SandboxDied: 502,
    StartupTimeout: 504,
    BackendUnavailable: 503,
    InfrastructureError: 503,
}
"""The status for each kind of error; a kind that is not listed has that of its nearest base."""

_log = logger(__name__)


def status_of(error: AgentEnvError) -> int:
    """The HTTP status for an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def body_of(status: int, message: str) -> dict[str, object]:
    """The body for an error, as E2B's `Error` has it."""
    return {"code": status, "message": message}


def response_of(error: AgentEnvError) -> JSONResponse:
    """The whole answer for an error, with `Retry-After` where trying again later is worth it."""
    status = status_of(error)
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, QuotaExceeded) else None
    # The kind and its facts travel along, so that our own client raises the same error again.
    content = body_of(status, error.message) | msgspec.to_builtins(describe(error))
    return JSONResponse(content, status, headers)


def install(app: FastAPI) -> None:
    """Has every error of the application answered so."""

    @app.exception_handler(AgentEnvError)
    async def known(request: Request, error: AgentEnvError) -> JSONResponse:
        if status_of(error) >= 500:
            _log.warning("server.request_failed", path=request.url.path, error=str(error))
        return response_of(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        found = ["{}: {}".format(".".join(str(part) for part in problem["loc"]), problem["msg"]) for problem in error.errors()]
        return JSONResponse(body_of(400, "; ".join(found)), 400)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(body_of(error.status_code, str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        # Its traceback goes to the log, through uvicorn, which is given the error again.
        return JSONResponse(body_of(500, "the server made a mistake; its log has the details."), 500)
