"""Finds out which sandbox and which port of it a request is for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

PATH_PREFIX = "/proxy/"

ID_HEADERS = ("e2b-sandbox-id", "x-agentenv-sandbox-id")
PORT_HEADERS = ("e2b-sandbox-port", "x-agentenv-target-port")

_LABEL = re.compile(r"(\d{1,5})-([0-9a-z-]{1,64})", re.ASCII | re.IGNORECASE)
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII)
_PATH = re.compile(rb"/proxy/([^/?]*)(?:/([^/?]*))?(/[^?]*)?", re.DOTALL)
_ENVD_ONLY = ("/process.Process/", "/filesystem.Filesystem/", "/files", "/envs", "/init")
"""Paths that are never the server's own."""


class NoTarget(ValueError):
    """A request that is for a sandbox, but does not say properly for which: one sentence that tells what is missing."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: `path` is what the server in the sandbox is asked for, as it was sent; `prefix` what was taken off it."""

    sandbox_id: str
    port: int
    path: bytes
    prefix: str = ""


def find_target(headers: Mapping[str, str], raw_path: bytes, domain: str) -> Target | None:
    """The target of a request, None when it is for the server itself. `domain` is the public one, with or without a port.

    Raises `NoTarget`.
    """
    if raw_path == b"/proxy" or raw_path.startswith(PATH_PREFIX.encode()):
        return _by_path(raw_path)
    host = _hostname(headers.get("host", ""))
    base = _hostname(domain)
    label, _, rest = host.partition(".")
    match = _LABEL.fullmatch(label)
    if match is not None and rest == base:
        return Target(_sandbox(match[2]), _port(match[1], "the host name"), raw_path)
    identifier, port = _first(headers, ID_HEADERS), _first(headers, PORT_HEADERS)
    if identifier is not None and port is not None:
        return Target(_sandbox(identifier), _port(port, "the header"), raw_path)
    if identifier is not None or port is not None:
        missing = PORT_HEADERS if port is None else ID_HEADERS
        raise NoTarget(f"the header {missing[0]} (or {missing[1]}) is missing")
    if host == f"sandbox.{base}" or raw_path.decode("latin-1").startswith(_ENVD_ONLY):
        raise NoTarget(
            f"which sandbox? Send the headers {ID_HEADERS[0]} and {PORT_HEADERS[0]} (or {ID_HEADERS[1]} and {PORT_HEADERS[1]}), "
            f"or use the host {{port}}-{{id}}.{domain}, or the path {PATH_PREFIX}{{id}}/{{port}}/"
        )
    return None


def _by_path(raw_path: bytes) -> Target:
    match = _PATH.fullmatch(raw_path)
    if match is None or not match[1] or not match[2]:
        raise NoTarget(f"the path is {PATH_PREFIX}{{sandbox id}}/{{port}}/…")
    identifier, port = (match[number].decode("latin-1") for number in (1, 2))
    return Target(_sandbox(identifier), _port(port, "the path"), match[3] or b"/", f"{PATH_PREFIX}{identifier}/{port}")


def _hostname(host: str) -> str:
    """A Host header without its port, in small letters."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((headers[name] for name in names if name in headers), None)


def _sandbox(identifier: str) -> str:
    if not _ID.fullmatch(identifier):
        raise NoTarget(f"{identifier[:80]!r} is no id of a sandbox")
    return identifier


def _port(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536):
        raise NoTarget(f"{text[:20]!r} in {where} is no port; ports are 1 to 65535")
    return int(text)
