"""Training runs of another machine, through the API of the server there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from agentenv.errors import AgentEnvError, ConfigError, Forbidden, InfrastructureError, NotFound, Unauthenticated
from agentenv.monitoring.lines import parse_line
from agentenv.paths import KEY_VARIABLE

PATIENCE = 30.0
"""Seconds that an answer may take."""
PAGE = 10_000
"""Rows that are asked for at once."""
LATEST = "latest"

_BY_STATUS: dict[int, type[AgentEnvError]] = {401: Unauthenticated, 403: Forbidden, 404: NotFound}


class ServerRun:
    """One run on a server, by default its live or else its latest one. Every method raises `NotFound` where there is none."""

    def __init__(self, run: str | None, server: str, api_key: str | None) -> None:
        key = api_key or os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise Unauthenticated(f"there is no API key for {server}.", remedy=f"Pass api_key=…, or set {KEY_VARIABLE}.")
        if not server.startswith(("http://", "https://")):
            raise ConfigError(f"{server!r} is not the address of a server", key="server", remedy="Write it as http://HOST:PORT.")
        self._url = f"{server.rstrip('/')}/runs/{quote(run or LATEST, safe='')}"
        self._headers = {"X-API-Key": key}

    def summary(self) -> dict[str, Any]:
        """Where it stands; see `TrainingMonitor.get_metrics`."""
        return msgspec.json.decode(self._get("").content, type=dict[str, Any])

    def prometheus(self) -> str:
        """What the training process has counted."""
        return self._get("/prometheus").text

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows of metrics, the oldest first."""
        start, count = 0, PAGE
        while count == PAGE:
            page = msgspec.json.decode(self._get(f"/metrics?start={start}&limit={PAGE}").content, type=list[dict[str, Any]])
            yield from page
            count = len(page)
            start += count

    def follow(self) -> Iterator[dict[str, Any]]:
        """All rows, and each further one as it comes, until the training ends."""
        quiet = httpx.Timeout(PATIENCE, read=None)  # Between two rows of a training may lie any time.
        try:
            with httpx.stream("GET", f"{self._url}/follow", headers=self._headers, timeout=quiet) as answer:
                if answer.is_error:
                    answer.read()
                    raise _fault(answer)
                for line in answer.iter_lines():
                    row = parse_line(line.encode())
                    if row is not None:
                        yield row
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _get(self, path: str) -> httpx.Response:
        try:
            answer = httpx.get(self._url + path, headers=self._headers, timeout=PATIENCE)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise _fault(answer)
        return answer

    def _unreachable(self, error: httpx.TransportError) -> InfrastructureError:
        what = str(error) or type(error).__name__
        return InfrastructureError(f"{self._url} cannot be reached: {what}.", remedy="Look whether `agentenv serve` runs there.")


class _Complaint(msgspec.Struct, frozen=True):
    message: str
    remedy: str | None = None


def _fault(answer: httpx.Response) -> AgentEnvError:
    try:
        said = msgspec.json.decode(answer.content, type=_Complaint)
    except msgspec.MsgspecError:
        said = _Complaint(f"{answer.url} answered {answer.status_code}: is it an AgentENV server?")
    return _BY_STATUS.get(answer.status_code, InfrastructureError)(said.message, remedy=said.remedy)
