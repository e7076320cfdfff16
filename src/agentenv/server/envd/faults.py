"""What a fault in a sandbox means to an E2B client: a code of Connect for calls, a status for /files."""

from __future__ import annotations

from agentenv.errors import AgentEnvError, InfrastructureError, InvalidState, NotFound, SandboxDied, SandboxFileError, StorageFull
from agentenv.guest.errors import AgentFailure, RequestTooLong
from agentenv.server.envd.connect import Code, ConnectError

_CODES = {
    "ENOENT": Code.NOT_FOUND,
    "ESRCH": Code.NOT_FOUND,
    "EEXIST": Code.ALREADY_EXISTS,
    "ENOTDIR": Code.INVALID_ARGUMENT,
    "EISDIR": Code.INVALID_ARGUMENT,
    "EINVAL": Code.INVALID_ARGUMENT,
    "ENAMETOOLONG": Code.INVALID_ARGUMENT,
    "EXDEV": Code.INVALID_ARGUMENT,
    "EPROTO": Code.INVALID_ARGUMENT,  # the agent takes no such parameter
    "EBUSY": Code.FAILED_PRECONDITION,
    "EOPNOTSUPP": Code.UNIMPLEMENTED,
    "ELOOP": Code.FAILED_PRECONDITION,
    "EACCES": Code.PERMISSION_DENIED,
    "EPERM": Code.PERMISSION_DENIED,
    "EROFS": Code.PERMISSION_DENIED,
}
_STATUSES = {
    Code.NOT_FOUND: 404,
    Code.INVALID_ARGUMENT: 400,
    Code.FAILED_PRECONDITION: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.UNIMPLEMENTED: 501,
}


def explain(error: AgentEnvError | OSError) -> ConnectError:
    """The error of a call. A sandbox that is gone is `unavailable`, in words by which the SDKs know that it is not merely out of reach."""
    if isinstance(error, SandboxFileError | AgentFailure):
        return ConnectError(_CODES.get(error.code, Code.INTERNAL), str(error))
    if isinstance(error, NotFound):
        return ConnectError(Code.NOT_FOUND, str(error))
    if isinstance(error, RequestTooLong):
        return ConnectError(Code.RESOURCE_EXHAUSTED, str(error))
    if isinstance(error, StorageFull):
        return ConnectError(Code.FAILED_PRECONDITION, str(error))
    if isinstance(error, SandboxDied | InvalidState):
        return ConnectError(Code.UNAVAILABLE, f"The sandbox was not found: {error}")
    if isinstance(error, InfrastructureError | OSError):
        return ConnectError(Code.UNAVAILABLE, str(error))
    return ConnectError(Code.INTERNAL, str(error))


def status_of(error: AgentEnvError | OSError | ConnectError) -> int:
    """The status of an answer of /files; 507 is a full disk, 502 a sandbox that is gone."""
    if isinstance(error, StorageFull):
        return 507
    code = error.code if isinstance(error, ConnectError) else explain(error).code
    return 502 if code is Code.UNAVAILABLE else _STATUSES.get(code, 500)
