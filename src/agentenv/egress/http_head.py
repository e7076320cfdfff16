"""The host that an unencrypted HTTP/1 request is for (RFC 9112 sections 3.2 and 7, RFC 9110 section 7.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentenv.egress.client_hello import Malformed, host_name

LONGEST_HEAD = 1 << 16
_REQUEST = re.compile(rb"(?P<method>[A-Z][A-Z-]{0,30}) (?P<target>[!-~]{1,8192}) HTTP/1\.[01]")
_ABSOLUTE = re.compile(rb"https?://(?P<authority>[^/?#]*)", re.IGNORECASE)
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")
_AUTHORITY = re.compile(rb"(?P<host>[^:@\[\]]+)(:(?P<port>[0-9]{1,5}))?")
_BEGINNING = re.compile(rb"[A-Z-]{0,31}( [!-~]*( H?T?T?P?/?[0-9.]*\r?)?)?")


@dataclass(frozen=True, slots=True)
class Head:
    """A request's head: `host` is a name in lower case or "" where none is given; `passed_on` is what its server is to get.

    That is the head with "Connection: close": one connection carries one request, so that a second one cannot name another host.
    With `upgrade` (a WebSocket) it is unchanged, and nothing more may be passed on unless the server agrees to that with 101.
    """

    host: str
    passed_on: bytes
    upgrade: bool


def read_head(data: bytes) -> tuple[Head, bytes] | None:
    """The head at the beginning of `data` and the bytes behind it, None while more bytes are needed.

    Raises `Malformed` for what is no HTTP/1 request, has no single answer to whom it is for, asks for a tunnel (CONNECT), or is longer
    than 64 KiB.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        first, newline, _ = data.partition(b"\r\n")
        if len(data) > LONGEST_HEAD or not (_REQUEST.fullmatch(first) if newline else _BEGINNING.fullmatch(first)):
            raise Malformed("no HTTP/1 request")
        return None
    lines = data[:end].split(b"\r\n")
    request, fields = lines[0], lines[1:]
    match = _REQUEST.fullmatch(request)
    if match is None or not all(_FIELD.fullmatch(field) for field in fields):
        raise Malformed("no HTTP/1 request")
    if match["method"] == b"CONNECT":
        raise Malformed("a request for a tunnel")
    host = _host(match["target"], fields)
    upgrade = bool(_values(fields, b"upgrade"))
    if not upgrade:
        fields = [field for field in fields if _name(field) not in (b"connection", b"keep-alive", b"proxy-connection")]
        fields.append(b"Connection: close")
    return Head(host, b"\r\n".join([request, *fields, b"", b""]), upgrade), data[end + 4 :]


def _name(field: bytes) -> bytes:
    return field.partition(b":")[0].lower()


def _values(fields: list[bytes], name: bytes) -> list[bytes]:
    return [field.partition(b":")[2].strip(b" \t") for field in fields if _name(field) == name]


def _host(target: bytes, fields: list[bytes]) -> str:
    given = _values(fields, b"host")
    if len(given) > 1:
        raise Malformed("several Host fields")
    absolute = _ABSOLUTE.match(target)
    named = [*given, *([absolute["authority"]] if absolute else [])]
    hosts = {_authority(value) for value in named}
    if len(hosts) > 1:
        raise Malformed("its target and its Host field name different hosts")
    return hosts.pop() if hosts else ""


def _authority(value: bytes) -> str:
    match = _AUTHORITY.fullmatch(value)
    if match is None:
        raise Malformed("no host and port")
    return host_name(match["host"])
