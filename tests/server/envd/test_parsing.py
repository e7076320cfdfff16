"""What the in-sandbox API reads besides Connect: accounts, paths, forms, encodings, ranges, credentials."""

from __future__ import annotations

import base64
import gzip
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.server.envd.admission import admit
from agentenv.server.envd.connect import Code, ConnectError
from agentenv.server.envd.encoding import packed, takes_plain, unpacked, wants_gzip
from agentenv.server.envd.multipart import MultipartReader, Part, boundary_of
from agentenv.server.envd.paths import resolve
from agentenv.server.envd.ranges import Span, wanted
from agentenv.server.envd.session import basic_user, keepalive_of
from agentenv.server.envd.users import User, parse_accounts

ADA = User("ada", 1001, 1001, "/home/ada")


async def cut(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a/../b", "/a/../b"),
        ("a/../b", "/home/ada/b"),
        ("../bob", "/home/bob"),
        ("~", "/home/ada"),
        ("~/x", "/home/ada/x"),
        ("", "/home/ada"),
        (".", "/home/ada"),
    ],
)
def test_paths(path: str, found: str) -> None:
    assert resolve(path, ADA) == found


@pytest.mark.parametrize("path", ["~bob/x", "a\0b", "/a\0"])
def test_paths_that_mean_nothing(path: str) -> None:
    with pytest.raises(ConnectError) as refused:
        resolve(path, ADA)
    assert refused.value.code == Code.INVALID_ARGUMENT


def test_the_directory_that_a_sandbox_works_in() -> None:
    assert (resolve("", ADA, "/work"), resolve("x", ADA, "/work")) == ("/work", "/home/ada/x")


def test_accounts() -> None:
    text = "root:x:0:0:root:/root:/bin/sh\n# no account\nada:x:1001:1001::/home/ada\nada:x:7:7::/\nbad:x:one:1::/\nodd:x:5:5::\n"
    assert parse_accounts(text) == {"root": User("root", 0, 0, "/root"), "ada": ADA, "odd": User("odd", 5, 5, "/")}


@given(st.text())
def test_no_text_breaks_the_accounts(text: str) -> None:
    assert all(name == account.name and account.uid >= 0 for name, account in parse_accounts(text).items())


def test_users_of_basic_authentication() -> None:
    def header(text: str) -> dict[str, str]:
        return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}

    assert [basic_user(header("ada:")), basic_user(header("ada:pass:word")), basic_user(header(":")), basic_user({})] == [
        "ada",
        "ada",
        None,
        None,
    ]
    assert basic_user({"authorization": "Bearer x"}) is None
    with pytest.raises(ConnectError):
        basic_user({"authorization": "Basic !"})


@pytest.mark.parametrize(("text", "seconds"), [("50", 50.0), ("0", 90.0), ("", 90.0), ("-1", 90.0), ("x", 90.0), ("999999", 90.0)])
def test_keepalive(text: str, seconds: float) -> None:
    assert keepalive_of({"keepalive-ping-interval": text}) == seconds


@pytest.mark.parametrize(
    ("header", "gzipped", "plain"),
    [
        ("", False, True),
        ("gzip", True, True),
        ("GZIP;q=0.5", True, True),
        ("gzip, deflate", False, True),
        ("gzip;q=0", False, True),
        ("gzip, identity;q=0", True, False),
        ("gzip;q=1, *;q=0", True, False),
        ("br, *;q=0", False, False),
        ("*;q=0, identity", False, True),
        ("*", False, True),
        ("gzip;q=often", True, True),
    ],
)
def test_encodings(header: str, gzipped: bool, plain: bool) -> None:
    assert (wants_gzip(header), takes_plain(header)) == (gzipped, plain)


@given(st.binary(max_size=5000), st.integers(1, 999))
async def test_gzip_piece_by_piece(content: bytes, size: int) -> None:
    small = b"".join([piece async for piece in packed(cut(content, size))])
    assert gzip.decompress(small) == content
    assert b"".join([piece async for piece in unpacked(cut(small, size))]) == content


@given(st.binary(min_size=1, max_size=200))
async def test_no_bytes_break_gunzip(noise: bytes) -> None:
    with pytest.raises(ConnectError):
        assert [piece async for piece in unpacked(cut(b"\0" + noise, 7))] == []


@given(st.integers(1, 100), st.integers(0, 120), st.integers(0, 120))
def test_ranges_are_what_a_slice_gives(size: int, first: int, last: int) -> None:
    content = bytes(size)
    try:
        span = wanted(f"bytes={first}-{last}", size)
    except ValueError:
        assert first >= size
    else:
        assert (span is None) == (last < first)
        assert span is None or span.length == len(content[first : last + 1])


@pytest.mark.parametrize(
    ("header", "span"), [(None, None), ("bytes=-3", Span(7, 3)), ("bytes=-30", Span(0, 10)), ("bytes=0-1,3-4", None), ("bytes=-", None)]
)
def test_ranges(header: str | None, span: Span | None) -> None:
    assert wanted(header, 10) == span


async def parts_of(boundary: bytes, body: bytes, size: int) -> list[tuple[Part, bytes]]:
    reader, found = MultipartReader(boundary, cut(body, size)), []
    while (part := await reader.next()) is not None:
        found.append((part, b"".join([piece async for piece in reader.content()])))
    return found


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters='"\\\r\n', exclude_categories=["Cs", "Cc"]), min_size=1), st.binary(max_size=300)
        ),
        max_size=4,
    ),
    st.integers(1, 200),
)
async def test_forms_are_read_however_they_are_cut(files: list[tuple[str, bytes]], size: int) -> None:
    request = httpx.Request("POST", "http://x", files=[("file", file) for file in files] or [("file", ("x", b""))])
    body, boundary = request.read(), boundary_of(request.headers["content-type"])
    expected = files or [("x", b"")]
    assert await parts_of(boundary, body, size) == [(Part("file", name), content) for name, content in expected]


async def test_parts_that_nobody_reads_are_skipped() -> None:
    request = httpx.Request("POST", "http://x", files=[("a", b"1" * 1000), ("b", b"2"), ("c", b"3")])
    reader = MultipartReader(boundary_of(request.headers["content-type"]), cut(request.read(), 100))
    names = []
    while (part := await reader.next()) is not None:
        names.append(part.name)
    assert names == ["a", "b", "c"]


@given(st.binary(max_size=200), st.integers(1, 50))
async def test_no_bytes_break_a_form(noise: bytes, size: int) -> None:
    body = b"--boundary\r\n" + noise
    if b"--boundary--" not in noise:
        with pytest.raises(ConnectError):
            await parts_of(b"boundary", body, size)


@pytest.mark.parametrize(
    ("method", "path", "headers", "admitted"),
    [
        ("GET", "/health", {}, True),
        ("POST", "/health", {}, False),
        ("GET", "/metrics", {}, False),
        ("POST", "/init", {}, False),
        ("POST", "/process.Process/List", {"x-access-token": "secret"}, True),
        ("POST", "/process.Process/List", {"x-access-token": "secreT"}, False),
        ("POST", "/process.Process/List", {"x-api-key": "secret", "authorization": "Bearer secret"}, False),
        ("GET", "/files", {}, False),
    ],
)
def test_who_may_come_in(method: str, path: str, headers: dict[str, str], admitted: bool) -> None:
    admit(None, method, path, headers, {})
    if admitted:
        admit("secret", method, path, headers, {})
    else:
        with pytest.raises(ConnectError) as refused:
            admit("secret", method, path, headers, {})
        assert refused.value.code == Code.UNAUTHENTICATED
