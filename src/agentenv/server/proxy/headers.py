"""Headers on their way through the proxy: what belongs to one connection only stays behind (RFC 9110, 7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable

from agentenv.server.proxy.target import ID_HEADERS, PORT_HEADERS

Headers = list[tuple[bytes, bytes]]

TRAFFIC_HEADERS = ("e2b-traffic-access-token", "x-agentenv-traffic-token")
"""Where a sandbox's traffic token is looked for."""

_OF_ONE_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_OURS = frozenset(name.encode() for name in (*ID_HEADERS, *PORT_HEADERS, *TRAFFIC_HEADERS)) | {b"expect"}
"""What is said to the proxy; the traffic token is none of the sandbox's business."""

_FORWARDED = frozenset((b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix"))


def without_hop(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What goes on to the next hop. Names come in small letters."""
    lines = [(name.lower(), value) for name, value in headers]
    named = {item.strip().lower() for name, value in lines if name == b"connection" for item in value.split(b",")}
    return [(name, value) for name, value in lines if name not in _OF_ONE_HOP and name not in named]


def inward(headers: Iterable[tuple[bytes, bytes]], *, client: str, scheme: str, prefix: str, host: str | None) -> Headers:
    """The headers that the server in the sandbox gets, with what the proxy knows of the client. `host` replaces the client's own."""
    lines = [(name, value) for name, value in without_hop(headers) if name not in _OURS and name not in _FORWARDED]
    before = [value for name, value in lines if name == b"x-forwarded-for"]
    public = next((value for name, value in lines if name == b"host"), b"")
    lines = [(name, value) for name, value in lines if name not in (b"x-forwarded-for", b"host")]
    return [
        (b"host", public if host is None else host.encode("latin-1")),
        *lines,
        (b"x-forwarded-for", b", ".join([*before, client.encode("latin-1")])),
        (b"x-forwarded-proto", scheme.encode("latin-1")),
        (b"x-forwarded-host", public),
        *([(b"x-forwarded-prefix", prefix.encode("latin-1"))] if prefix else []),
    ]
