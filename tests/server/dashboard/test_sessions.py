"""Cookies that are no sessions, and secrets that stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import Unauthenticated
from agentenv.server.access import Access
from agentenv.server.dashboard.sessions import LIFETIME, Session, Sessions, read_secret
from agentenv.server.database import Database

KEY = "e2b_" + "0123456789" * 4


@pytest.fixture
async def access(tmp_path: Path):  # type: ignore[no-untyped-def]
    database = await Database.open(None, tmp_path)
    opened = await Access.open(database, tmp_path, given_key=KEY)
    yield opened
    await opened.close()
    await database.close()


async def test_a_session_is_who_began_it(access: Access) -> None:
    sessions = Sessions(access, b"s" * 32)
    principal = access.principal_of(KEY)
    session = sessions.read(sessions.begin(principal))
    assert sessions.principal(session) == principal


async def test_another_secret_is_another_server(access: Access) -> None:
    cookie = Sessions(access, b"s" * 32).begin(access.principal_of(KEY))
    with pytest.raises(Unauthenticated):
        Sessions(access, b"t" * 32).read(cookie)


async def test_an_old_session_has_ended(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(access, b"s" * 32)
    cookie = sessions.begin(access.principal_of(KEY))
    monkeypatch.setattr("agentenv.server.dashboard.sessions.LIFETIME", -1)
    with pytest.raises(Unauthenticated, match="nobody is signed in"):
        sessions.read(cookie)
    assert LIFETIME == 12 * 3600


async def test_one_that_was_ended_is_not_known_any_more_and_others_are(access: Access) -> None:
    sessions = Sessions(access, b"s" * 32)
    first, second = (sessions.begin(access.principal_of(KEY)) for _ in range(2))
    sessions.end(sessions.read(first))
    with pytest.raises(Unauthenticated, match="ended"):
        sessions.read(first)
    assert isinstance(sessions.read(second), Session)


@given(cookie=st.one_of(st.none(), st.text(), st.from_regex(r"[\w.-]{1,80}")))
def test_nothing_else_is_a_session(cookie: str | None) -> None:
    sessions = Sessions(None, b"s" * 32)  # type: ignore[arg-type]
    with pytest.raises(Unauthenticated):
        sessions.read(cookie)


def test_the_secret_stays_and_is_the_servers_alone(tmp_path: Path) -> None:
    first = read_secret(tmp_path)
    assert read_secret(tmp_path) == first
    assert len(first) == 32
    assert (tmp_path / "dashboard-secret").stat().st_mode & 0o777 == 0o600


def test_a_broken_secret_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "dashboard-secret").write_bytes(b"short")
    assert len(read_secret(tmp_path)) == 32
