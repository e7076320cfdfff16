"""Which sandbox and port a request is for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.server.proxy.headers import inward, without_hop
from agentenv.server.proxy.target import NoTarget, Target, find_target

DOMAIN = "boxes.test:8700"
UUID = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("headers", "path", "target"),
    [
        ({"host": f"8080-{UUID}.boxes.test"}, b"/x", Target(UUID, 8080, b"/x")),
        ({"host": f"8080-{UUID}.BOXES.test:9999"}, b"/x", Target(UUID, 8080, b"/x")),
        ({"host": f"8080-{UUID}.elsewhere.test"}, b"/x", None),
        ({"host": "api.boxes.test"}, b"/sandboxes", None),
        ({"host": "[::1]:80", "e2b-sandbox-id": "a", "e2b-sandbox-port": "49983"}, b"/files", Target("a", 49983, b"/files")),
        ({"x-agentenv-sandbox-id": "a", "x-agentenv-target-port": "1"}, b"/", Target("a", 1, b"/")),
        ({"e2b-sandbox-id": "a", "x-agentenv-target-port": "1"}, b"/", Target("a", 1, b"/")),
        ({}, f"/proxy/{UUID}/80/a%2Fb".encode(), Target(UUID, 80, b"/a%2Fb", f"/proxy/{UUID}/80")),
        ({}, b"/proxy/a/80", Target("a", 80, b"/", "/proxy/a/80")),
        ({}, b"/proxying", None),
        ({}, b"/", None),
    ],
)
def test_targets(headers: dict[str, str], path: bytes, target: Target | None) -> None:
    assert find_target(headers, path, DOMAIN) == target


@pytest.mark.parametrize(
    ("headers", "path", "word"),
    [
        ({"e2b-sandbox-id": "a"}, b"/", "e2b-sandbox-port"),
        ({"e2b-sandbox-port": "1"}, b"/", "e2b-sandbox-id"),
        ({"e2b-sandbox-id": "a/b", "e2b-sandbox-port": "1"}, b"/", "no id"),
        ({"e2b-sandbox-id": "a", "e2b-sandbox-port": "0"}, b"/", "no port"),
        ({"e2b-sandbox-id": "a", "e2b-sandbox-port": "65536"}, b"/", "no port"),
        ({"e2b-sandbox-id": "a", "e2b-sandbox-port": "²"}, b"/", "no port"),
        ({"host": "99999-a.boxes.test"}, b"/", "no port"),
        ({"host": "sandbox.boxes.test"}, b"/health", "which sandbox"),
        ({}, b"/process.Process/Start", "which sandbox"),
        ({}, b"/files", "which sandbox"),
        ({}, b"/proxy", "the path is"),
        ({}, b"/proxy/a", "the path is"),
        ({}, b"/proxy//80/", "the path is"),
        ({}, b"/proxy/a/b/", "no port"),
        ({}, b"/proxy/..%2f/80/", "no id"),
    ],
)
def test_targets_that_are_none(headers: dict[str, str], path: bytes, word: str) -> None:
    with pytest.raises(NoTarget, match=word):
        find_target(headers, path, DOMAIN)


@given(st.dictionaries(st.sampled_from(["host", "e2b-sandbox-id", "e2b-sandbox-port"]), st.text(max_size=30)), st.binary(max_size=40))
def test_nothing_that_is_sent_breaks_it(headers: dict[str, str], path: bytes) -> None:
    try:
        target = find_target(headers, b"/" + path, DOMAIN)
    except NoTarget:
        return
    assert target is None or (0 < target.port < 65_536 and target.path.startswith(b"/"))


def test_what_belongs_to_one_connection_stays_behind() -> None:
    lines = [
        (b"Connection", b"close, X-Mine"),
        (b"X-Mine", b"1"),
        (b"Upgrade", b"h2c"),
        (b"TE", b"trailers"),
        (b"Accept", b"a"),
        (b"Accept", b"b"),
    ]
    assert without_hop(lines) == [(b"accept", b"a"), (b"accept", b"b")]


def test_what_the_sandbox_is_told() -> None:
    lines = [
        (b"host", b"public"),
        (b"e2b-sandbox-id", b"a"),
        (b"e2b-traffic-access-token", b"t"),
        (b"x-forwarded-for", b"1.1.1.1"),
        (b"cookie", b"c"),
    ]
    lines += [(b"x-forwarded-host", b"a lie")]
    told = inward(lines, client="2.2.2.2", scheme="https", prefix="/proxy/a/80", host=None)
    assert told == [
        (b"host", b"public"),
        (b"cookie", b"c"),
        (b"x-forwarded-for", b"1.1.1.1, 2.2.2.2"),
        (b"x-forwarded-proto", b"https"),
        (b"x-forwarded-host", b"public"),
        (b"x-forwarded-prefix", b"/proxy/a/80"),
    ]
    assert inward(lines, client="", scheme="http", prefix="", host="localhost:80")[0] == (b"host", b"localhost:80")
