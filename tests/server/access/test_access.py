"""Who may come in."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select
from starlette.datastructures import Headers

from agentenv.errors import ConfigError, Forbidden, InvalidState, NotFound, Unauthenticated
from agentenv.server.access import Access, Principal, Quotas, Role, Tenant
from agentenv.server.access.keys import mask, new_key, new_token, same
from agentenv.server.database import Database
from agentenv.server.database.tables import Base

GIVEN = "given-key-0123456789"


def headers(*pairs: tuple[str, str]) -> Headers:
    return Headers(raw=[(name.lower().encode(), value.encode()) for name, value in pairs])


@pytest.fixture
async def access(database: Database, tmp_path: Path) -> AsyncIterator[Access]:
    opened = await Access.open(database, tmp_path, given_key=GIVEN)
    yield opened
    await opened.close()


async def test_the_first_start_makes_a_key_and_says_where_it_lies(database: Database, tmp_path: Path) -> None:
    first = await Access.open(database, tmp_path)
    made = first.first_key
    assert made is not None
    assert made.file.read_text().strip() == made.secret
    assert stat.S_IMODE(made.file.stat().st_mode) == 0o600
    principal = first.principal_of(made.secret)
    assert principal.operates
    await first.close()
    second = await Access.open(database, tmp_path)
    assert second.first_key is None
    assert second.principal_of(made.secret).tenant == principal.tenant
    await second.close()


async def test_no_key_lies_in_the_database(database: Database, access: Access) -> None:
    _, secret = await access.create_key(access.tenant("default"), "k", Role.USER)
    async with database.read() as session:
        rows = [row for table in Base.metadata.tables.values() for row in await session.execute(select(table))]
    assert rows
    for kept in (secret, GIVEN):
        assert not [row for row in rows if kept in str(tuple(row)) or kept.encode() in tuple(row)]


@pytest.mark.parametrize("given", ["short", "with spaces in it and long", "ümlauts-that-are-long-enough"])
async def test_a_given_key_that_will_not_do_is_refused(database: Database, tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigError, match="AGENTENV_API_KEY"):
        await Access.open(database, tmp_path, given_key=given)
    assert not (tmp_path / "api-key").exists()


async def test_a_key_is_taken_from_either_header(access: Access) -> None:
    for pair in (("X-API-KEY", GIVEN), ("Authorization", f"Bearer {GIVEN}"), ("authorization", f"bearer  {GIVEN}")):
        assert access.authenticate(headers(pair)).tenant.name == "default"
    both = headers(("X-API-KEY", GIVEN), ("Authorization", f"Bearer {GIVEN}"))
    assert access.authenticate(both).role is Role.ADMIN


@pytest.mark.parametrize(
    "pairs",
    [
        (),
        (("Authorization", "Basic abc"),),
        (("X-API-Key", ""),),
        (("X-API-Key", GIVEN + "x"),),
        (("X-API-Key", GIVEN), ("X-API-Key", GIVEN)),
        (("X-API-Key", GIVEN), ("Authorization", "Bearer other")),
        (("Authorization", "Bearer other"), ("X-API-Key", GIVEN)),
        (("Authorization", f"Bearer {GIVEN}"), ("Authorization", f"Bearer {GIVEN}")),
    ],
)
async def test_missing_wrong_double_and_conflicting_keys_are_refused(access: Access, pairs: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(Unauthenticated):
        access.authenticate(headers(*pairs))


async def test_a_deleted_key_ends_at_once_and_the_last_admin_stays(access: Access) -> None:
    operator = access.tenant("default")
    key, secret = await access.create_key(operator, "second", Role.ADMIN)
    assert access.principal_of(secret).operates
    await access.delete_key(key)
    with pytest.raises(Unauthenticated):
        access.principal_of(secret)
    (first,) = access.keys_of(operator)
    with pytest.raises(InvalidState, match="last key"):
        await access.delete_key(first)


async def test_an_admin_of_another_tenant_does_not_operate_the_server(access: Access) -> None:
    tenant = await access.create_tenant("acme", Quotas(sandboxes=1))
    _, secret = await access.create_key(tenant, "k", Role.ADMIN)
    principal = access.principal_of(secret)
    principal.require(Role.ADMIN)
    with pytest.raises(Forbidden):
        principal.require_operator()


async def test_tenants_outlive_the_process(database: Database, access: Access, tmp_path: Path) -> None:
    tenant = await access.create_tenant("acme", Quotas(cpu=2.5))
    await access.set_quotas(tenant, Quotas(cpu=4.0, sandboxes=7))
    _, secret = await access.create_key(tenant, "k", Role.READ_ONLY)
    again = await Access.open(database, tmp_path)
    assert again.tenant("acme").quotas == Quotas(cpu=4.0, sandboxes=7)
    assert again.principal_of(secret).role is Role.READ_ONLY
    with pytest.raises(InvalidState, match="already"):
        await again.create_tenant("acme", Quotas())
    await again.delete_tenant(again.tenant("acme"))
    with pytest.raises(NotFound):
        again.tenant("acme")
    with pytest.raises(Unauthenticated):
        again.principal_of(secret)
    await again.close()


@pytest.mark.parametrize("role", list(Role))
def test_a_role_may_what_the_lower_ones_may(role: Role) -> None:
    principal = Principal(Tenant("t", "t", False, Quotas()), role, "k", "k")
    for wanted in Role:
        if wanted.rank <= role.rank:
            principal.require(wanted)
        else:
            with pytest.raises(Forbidden, match=str(role)):
                principal.require(wanted)


async def test_the_audit_log_keeps_who_did_what(access: Access) -> None:
    principal = access.principal_of(GIVEN)
    for number in range(5):
        access.audit.record(principal, "DELETE /sandboxes/{sandboxID}", f"id{number}", 204, "127.0.0.1")
    access.audit.record(None, "POST /sandboxes", None, 401, "10.0.0.1")
    latest, *rest = await access.audit.entries(limit=3)
    assert (latest.status, latest.tenant, latest.address) == (401, None, "10.0.0.1")
    assert [entry.target for entry in rest] == ["id4", "id3"]
    older = await access.audit.entries(before=rest[-1].id, tenant=principal.tenant.id)
    assert [entry.target for entry in older] == ["id2", "id1", "id0"]


def test_secrets_are_long_and_never_twice() -> None:
    made = {new_key() for _ in range(100)} | {new_token() for _ in range(100)}
    assert len(made) == 200
    assert all(len(secret) >= 40 for secret in made)
    key = new_key()
    assert key[8:-4] not in mask(key)
    assert same(key, key)
    assert not same(key, key[:-1] + "x")
