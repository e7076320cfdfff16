"""Whom a connection is for, read from its first bytes: whatever comes, in however many pieces."""

from __future__ import annotations

import functools
import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.egress.test_destinations import DOMAINS

from agentenv.egress.client_hello import Malformed, host_name, server_name
from agentenv.egress.http_head import Head, read_head

NAMES = DOMAINS.filter(lambda name: "." in name)


@functools.lru_cache(maxsize=512)
def real_hello(name: str | None) -> bytes:
    """What Python's own TLS sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def in_records(hello: bytes, size: int) -> bytes:
    """The same message in records of `size` bytes."""
    message = hello[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(hello[:3] + len(piece).to_bytes(2, "big") + piece for piece in pieces)


@settings(max_examples=30)
@given(NAMES, st.integers(1, 600))
def test_the_name_is_found_in_records_of_any_size(name: str, size: int) -> None:
    hello = real_hello(name)
    assert server_name(hello) == name
    assert server_name(in_records(hello, size) + b"more") == name


@given(st.integers(0, 10_000))
def test_a_part_of_a_hello_is_not_enough_and_never_another_name(cut: int) -> None:
    hello = real_hello("example.com")
    beginning = hello[: cut % len(hello)]
    assert server_name(beginning) is None


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 255))
def test_nothing_but_malformed_comes_of_nonsense(data: bytes, place: int, value: int) -> None:
    damaged = bytearray(real_hello("example.com"))
    damaged[place % len(damaged)] = value
    for attempt in (data, b"\x16\x03\x01" + data, bytes(damaged)):
        try:
            found = server_name(attempt)
        except Malformed:
            continue
        assert found is None or found == "" or host_name(found.encode()) == found


def test_a_hello_may_name_nobody() -> None:
    assert server_name(real_hello(None)) == ""


def test_a_hello_that_names_two_is_refused() -> None:
    hello = real_hello("aaaa.example")
    entry = b"\x00\x00\x0caaaa.example"
    extension = b"\x00\x00" + (len(entry) + 2).to_bytes(2, "big") + len(entry).to_bytes(2, "big") + entry
    twice = b"\x00\x00" + (2 * len(entry) + 2).to_bytes(2, "big") + (2 * len(entry)).to_bytes(2, "big") + entry * 2
    body = hello[9:]
    at = body.index(extension)
    extensions_at = 2 + 32 + 1 + body[34]
    extensions_at += 2 + int.from_bytes(body[extensions_at : extensions_at + 2], "big")
    extensions_at += 1 + body[extensions_at]
    grown = int.from_bytes(body[extensions_at : extensions_at + 2], "big") + len(entry)
    changed = body[:extensions_at] + grown.to_bytes(2, "big") + body[extensions_at + 2 : at] + twice + body[at + len(extension) :]
    message = b"\x01" + len(changed).to_bytes(3, "big") + changed
    with pytest.raises(Malformed, match="several servers"):
        server_name(b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message)


def test_endless_hellos_are_cut_short() -> None:
    with pytest.raises(Malformed):
        server_name(b"\x16\x03\x01\x00\x04\x01\xff\xff\xff")
    with pytest.raises(Malformed):
        server_name(b"\x16\x03\x01\xff\xff")
    with pytest.raises(Malformed):
        server_name(b"\x17\x03\x01\x00\x01x")


@pytest.mark.parametrize("raw", [b"exa mple.com", b"", b"a", b"a..b", b"-a.com", b"a.7", b"\xff.com", b"a" * 300 + b".com", b"[::1]"])
def test_what_is_no_host_name_is_refused(raw: bytes) -> None:
    with pytest.raises(Malformed):
        host_name(raw)


def test_addresses_are_no_names() -> None:
    assert host_name(b"10.0.0.1") == ""
    assert host_name(b"EXAMPLE.com.") == "example.com"


def head(text: str) -> Head:
    read = read_head(text.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    assert read is not None
    return read[0]


@given(NAMES, st.none() | st.integers(1, 65535), st.sampled_from(["GET", "POST", "PROPFIND"]), st.integers(0, 100))
def test_the_host_of_a_request_is_found(name: str, port: int | None, method: str, cut: int) -> None:
    host = name if port is None else f"{name}:{port}"
    data = f"{method} /x?y HTTP/1.1\r\nAccept: */*\r\nhOsT:  {host} \r\n\r\nbody".encode()
    read = read_head(data)
    assert read is not None
    assert (read[0].host, read[1]) == (name, b"body")
    assert read_head(data[: min(cut, len(data) - 8)]) is None


def test_one_connection_carries_one_request() -> None:
    changed = head("GET / HTTP/1.1\nHost: example.com\nConnection: keep-alive\nKeep-Alive: timeout=5\nX: y").passed_on
    assert changed == b"GET / HTTP/1.1\r\nHost: example.com\r\nX: y\r\nConnection: close\r\n\r\n"


def test_a_request_to_change_the_protocol_stays_as_it_is() -> None:
    socket = head("GET /chat HTTP/1.1\nHost: example.com\nUpgrade: websocket\nConnection: Upgrade")
    assert socket.upgrade
    assert b"Connection: Upgrade" in socket.passed_on


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("CONNECT example.com:443 HTTP/1.1\nHost: example.com", "tunnel"),
        ("GET / HTTP/1.1\nHost: a.example\nHost: b.example", "several Host"),
        ("GET http://a.example/ HTTP/1.1\nHost: b.example", "different hosts"),
        ("GET / HTTP/1.1\nHost: a.example\n folded: x", "no HTTP/1 request"),
        ("GET / HTTP/1.1\nHost : a.example", "no HTTP/1 request"),
        ("GET / HTTP/1.1\nHost: user@a.example", "no host and port"),
        ("GET / HTTP/1.1\nHost: [fd00::1]", "no host and port"),
        ("GET / HTTP/2.0\nHost: a.example", "no HTTP/1 request"),
        ("GET / HTTP/1.1\nHost: a.example\rX: y", "no HTTP/1 request"),
        ("SSH-2.0-OpenSSH_9.2", "no HTTP/1 request"),
    ],
)
def test_requests_without_one_host_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(Malformed, match=complaint):
        head(text)


def test_an_absolute_target_may_stand_for_the_host() -> None:
    assert head("GET http://a.example:80/x HTTP/1.1\nHost: a.example").host == "a.example"
    assert head("GET http://a.example/x HTTP/1.0").host == "a.example"
    assert head("GET /x HTTP/1.0").host == ""


@given(st.binary(max_size=200))
def test_nothing_but_malformed_comes_of_other_nonsense(data: bytes) -> None:
    for attempt in (data, b"GET / HTTP/1.1\r\nHost: " + data + b"\r\n\r\n"):
        try:
            read = read_head(attempt)
        except Malformed:
            continue
        assert read is None or read[0].host == host_name(read[0].host.encode() or b"1.1.1.1")


def test_what_is_no_request_is_refused_early() -> None:
    for beginning in (b"SSH-2.0-x\r\n", b"\x00\x01", b"get / http\r\n", b"A" * 70_000):
        with pytest.raises(Malformed):
            read_head(beginning)
    assert read_head(b"GET /aaa HTT") is None
