"""What POST /init changes of a sandbox's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from agentenv.server.envd.connect import Code, ConnectError
from agentenv.server.envd.refusal import Refused
from agentenv.server.envd.session import Session

_Name = Annotated[str, StringConstraints(pattern=r"^[^=\x00]+$")]
_Value = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
_ELSEWHERE = {
    "volumeMounts": "volumes are not mounted here",
    "caBundle": "certificates are part of the image",
    "hyperloopIP": "there is no events service in the sandbox",
}
"""What E2B's own servers ask of their envd, and which would be wrong to pass over."""


class Settings(BaseModel):
    """The body of POST /init, as far as it means anything here; the time is the host's, so that `timestamp` is taken and not needed."""

    model_config = ConfigDict(extra="ignore")

    env_vars: dict[_Name, _Value] | None = Field(default=None, alias="envVars")
    default_user: str | None = Field(default=None, alias="defaultUser")
    default_workdir: str | None = Field(default=None, alias="defaultWorkdir")
    access_token: str | None = Field(default=None, alias="accessToken")


def apply_settings(session: Session, wishes: Mapping[str, object], *, token: str | None) -> None:
    """Sets the variables, user and directory that processes get by default.

    Raises `ConnectError` for what is none of these, `Refused` for what cannot be had.
    """
    for name, why in _ELSEWHERE.items():
        if wishes.get(name):
            raise Refused(501, f"`{name}` is not supported: {why}")
    try:
        settings = Settings.model_validate(wishes)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConnectError(Code.INVALID_ARGUMENT, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if settings.access_token and settings.access_token != token:
        raise Refused(501, "the access token of a sandbox is made by the server and cannot be set")
    if settings.env_vars is not None:
        session.envs = settings.env_vars
    if settings.default_user:
        session.default_user = settings.default_user
    if settings.default_workdir:
        session.default_workdir = settings.default_workdir
