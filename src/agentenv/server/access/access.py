"""Tenants and their keys: who may come in, and what they may do. The database holds them; this process remembers all of them."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import delete, select, update
from starlette.datastructures import Headers

from agentenv.errors import InfrastructureError, InvalidState, NotFound, Unauthenticated
from agentenv.server.access import keys
from agentenv.server.access.audit import AuditLog
from agentenv.server.access.principal import Principal, Quotas, Role, Tenant
from agentenv.server.database import Database
from agentenv.server.database.tables import KeyRow, SandboxRow, TemplateRow, TenantRow

FIRST_TENANT = "default"
KEY_HEADER = "x-api-key"


@dataclass(frozen=True, slots=True)
class Key:
    """An API key as it is remembered: everything but the key. Times are unix seconds."""

    id: str
    tenant: str
    name: str
    role: Role
    digest: bytes
    mask: str
    length: int
    created: float
    last_used: float | None = None


@dataclass(frozen=True, slots=True)
class FirstKey:
    """The key that the first start made: shown once, and kept in `file` for who administers the machine."""

    secret: str
    file: Path


class Access:
    """Authenticates requests and administers tenants and keys."""

    def __init__(self, database: Database, audit: AuditLog) -> None:
        self.audit = audit
        self.first_key: FirstKey | None = None
        self._database = database
        self._tenants: dict[str, Tenant] = {}
        self._keys: dict[bytes, Key] = {}

    @classmethod
    async def open(cls, database: Database, home: Path, *, given_key: str | None = None, quotas: Quotas | None = None) -> Access:
        """Reads who is known. With no tenant yet, makes the operator's, with an admin key: `given_key` or a fresh one in `home`/api-key.

        Raises `ConfigError` for a given key that will not do.
        """
        access = cls(database, AuditLog(database))
        try:
            await access._read()
            if not access._tenants:
                await access._begin(home, given_key, quotas or Quotas())
        except BaseException:
            await access.close()
            raise
        return access

    async def close(self) -> None:
        """Writes down when keys were last used, and what the audit log still holds."""
        used = {key.id: key.last_used for key in self._keys.values() if key.last_used is not None}
        async with self._database.write() as session:
            for identifier, last in used.items():
                await session.execute(update(KeyRow).where(KeyRow.id == identifier).values(last_used=last))
        await self.audit.close()

    def authenticate(self, headers: Headers) -> Principal:
        """Who sends these headers: `X-API-Key: KEY` or `Authorization: Bearer KEY`.

        Raises `Unauthenticated` where there is no key, a wrong one, one twice, or two that differ.
        """
        given = headers.getlist(KEY_HEADER)
        bearers = [value.partition(" ") for value in headers.getlist("authorization")]
        given += [secret.strip() for scheme, _, secret in bearers if scheme.lower() == "bearer"]
        if not given:
            raise Unauthenticated("this request has no API key.", remedy="Send it in the header X-API-Key.")
        if len(headers.getlist(KEY_HEADER)) > 1 or len(headers.getlist("authorization")) > 1:
            raise Unauthenticated("this request has the same header twice.", remedy="Send one API key.")
        if any(not keys.same(given[0], other) for other in given[1:]):
            raise Unauthenticated("this request has two API keys that differ.", remedy="Send one API key.")
        return self.principal_of(given[0])

    def principal_of(self, secret: str) -> Principal:
        """Whose key that is. Raises `Unauthenticated`."""
        found = self._keys.get(keys.digest(secret))
        if found is None or not keys.same(found.digest, keys.digest(secret)):
            raise Unauthenticated("this API key is not known here.", remedy="Check it, or ask an administrator for one.")
        self._keys[found.digest] = replace(found, last_used=time.time())
        return Principal(self._tenants[found.tenant], found.role, found.id, found.name)

    def tenants(self) -> list[Tenant]:
        """All of them, by name."""
        return sorted(self._tenants.values(), key=lambda tenant: tenant.name)

    def tenant(self, identifier: str) -> Tenant:
        """The one with that id or name. Raises `NotFound`."""
        for tenant in self._tenants.values():
            if identifier in (tenant.id, tenant.name):
                return tenant
        raise NotFound(f"there is no tenant {identifier!r}.")

    async def create_tenant(self, name: str, quotas: Quotas, *, operator: bool = False) -> Tenant:
        """Makes a tenant. Raises `InvalidState` when the name is taken."""
        if any(tenant.name == name for tenant in self._tenants.values()):
            raise InvalidState(f"there is a tenant {name!r} already.", remedy="Choose another name.")
        tenant = Tenant(str(uuid.uuid4()), name, operator, quotas)
        # Known at once, so that nobody takes the name while the database is written.
        self._tenants[tenant.id] = tenant
        try:
            async with self._database.write() as session:
                row = TenantRow(id=tenant.id, name=name, operator=operator, quotas=quotas.to_json(), created=time.time())
                session.add(row)
        except BaseException:
            del self._tenants[tenant.id]
            raise
        return tenant

    async def set_quotas(self, tenant: Tenant, quotas: Quotas) -> Tenant:
        """Changes what a tenant may have; what it has beyond stays, and nothing more is given."""
        async with self._database.write() as session:
            await session.execute(update(TenantRow).where(TenantRow.id == tenant.id).values(quotas=quotas.to_json()))
        self._tenants[tenant.id] = replace(tenant, quotas=quotas)
        return self._tenants[tenant.id]

    async def delete_tenant(self, tenant: Tenant) -> None:
        """Removes a tenant with its keys. Raises `InvalidState` while it owns anything, or is the operator's."""
        if tenant.operator:
            raise InvalidState("the operator's tenant cannot be removed.")
        async with self._database.write() as session:
            for row, what in ((SandboxRow, "sandboxes"), (TemplateRow, "templates")):
                if (await session.scalars(select(row.id).where(row.tenant == tenant.id).limit(1))).first() is not None:
                    raise InvalidState(f"tenant {tenant.name!r} still has {what}.", remedy="Remove those first.")
            await session.execute(delete(TenantRow).where(TenantRow.id == tenant.id))
        self._tenants.pop(tenant.id, None)
        self._keys = {mark: key for mark, key in self._keys.items() if key.tenant != tenant.id}

    def keys_of(self, tenant: Tenant) -> list[Key]:
        """A tenant's keys, the oldest first."""
        return sorted((key for key in self._keys.values() if key.tenant == tenant.id), key=lambda key: key.created)

    def key_of(self, tenant: Tenant, identifier: str) -> Key:
        """One of a tenant's keys. Raises `NotFound`."""
        for key in self.keys_of(tenant):
            if key.id == identifier:
                return key
        raise NotFound(f"there is no API key {identifier!r}.")

    async def create_key(self, tenant: Tenant, name: str, role: Role, *, secret: str | None = None) -> tuple[Key, str]:
        """Makes a key and returns it with its secret, which is kept nowhere."""
        secret = secret or keys.new_key()
        key = Key(str(uuid.uuid4()), tenant.id, name, role, keys.digest(secret), keys.mask(secret), len(secret), time.time())
        async with self._database.write() as session:
            session.add(
                KeyRow(
                    id=key.id,
                    tenant=tenant.id,
                    name=name,
                    role=role.value,
                    digest=key.digest,
                    mask=key.mask,
                    length=key.length,
                    created=key.created,
                    last_used=None,
                )
            )
        self._keys[key.digest] = key
        return key, secret

    async def rename_key(self, key: Key, name: str) -> None:
        """Calls a key otherwise."""
        async with self._database.write() as session:
            await session.execute(update(KeyRow).where(KeyRow.id == key.id).values(name=name))
        self._keys[key.digest] = replace(key, name=name)

    async def delete_key(self, key: Key) -> None:
        """Ends a key at once. Raises `InvalidState` for the last admin key of the operator's tenant."""
        tenant = self._tenants[key.tenant]
        others = [other for other in self.keys_of(tenant) if other.id != key.id and other.role is Role.ADMIN]
        if tenant.operator and key.role is Role.ADMIN and not others:
            raise InvalidState("this is the last key that can administer the server.", remedy="Make another admin key first.")
        self._keys.pop(key.digest, None)
        async with self._database.write() as session:
            await session.execute(delete(KeyRow).where(KeyRow.id == key.id))

    async def _read(self) -> None:
        async with self._database.read() as session:
            for tenant in await session.scalars(select(TenantRow)):
                self._tenants[tenant.id] = Tenant(tenant.id, tenant.name, tenant.operator, Quotas(**tenant.quotas))
            for row in await session.scalars(select(KeyRow)):
                self._keys[row.digest] = _key(row)

    async def _begin(self, home: Path, given_key: str | None, quotas: Quotas) -> None:
        if given_key is not None:
            keys.check_given(given_key, "AGENTENV_API_KEY")
        secret = given_key or keys.new_key()
        # The file first: a key that is valid and that nobody has would lock everybody out.
        file = _keep(secret, home) if given_key is None else None
        tenant = await self.create_tenant(FIRST_TENANT, quotas, operator=True)
        await self.create_key(tenant, "first", Role.ADMIN, secret=secret)
        if file is not None:
            self.first_key = FirstKey(secret, file)


def _key(row: KeyRow) -> Key:
    role = Role(row.role)
    return Key(row.id, row.tenant, row.name, role, row.digest, row.mask, row.length, row.created, row.last_used)


def _keep(secret: str, home: Path) -> Path:
    file = home / "api-key"
    try:
        file.unlink(missing_ok=True)
        file.touch(mode=0o600, exist_ok=False)
        file.write_text(f"{secret}\n")
    except OSError as error:
        raise InfrastructureError(f"{file} cannot be written: {error.strerror}.", remedy="Check the disk of AGENTENV_HOME.") from error
    return file
