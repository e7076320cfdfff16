"""What outlives the process, as tables. Times are unix seconds; what has a structure of its own is kept as JSON.

A sandbox's row is written before anything is done to the sandbox (`state` says what was begun) and again when it is done, so that the next
start of the server knows what a crash interrupted.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Json = dict[str, Any]
BIG = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """The base of all tables."""

    type_annotation_map = {Json: JSON}  # noqa: RUF012 - SQLAlchemy's own way of saying it


class SchemaVersion(Base):
    """One row: which version of the tables this database has."""

    __tablename__ = "schema_version"
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class TenantRow(Base):
    """Who owns keys, sandboxes, templates and snapshots. Admins of the operator's tenant administer the server."""

    __tablename__ = "tenants"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    operator: Mapped[bool]
    quotas: Mapped[Json]
    created: Mapped[float]


class KeyRow(Base):
    """An API key, known by its digest only; `mask` is what people recognise it by."""

    __tablename__ = "keys"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), index=True)
    name: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32), unique=True)
    mask: Mapped[str] = mapped_column(String(64))
    length: Mapped[int]
    created: Mapped[float]
    last_used: Mapped[float | None]


class AuditRow(Base):
    """Who did what when; never changed."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(BIG, primary_key=True, autoincrement=True)
    time: Mapped[float] = mapped_column(index=True)
    tenant: Mapped[str | None] = mapped_column(String(36), index=True)
    key: Mapped[str | None] = mapped_column(String(36))
    address: Mapped[str | None] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(128))
    target: Mapped[str | None] = mapped_column(String(256))
    status: Mapped[int]


class SandboxRow(Base):
    """A sandbox, also for a while after its end. `snapshot` is the node's snapshot from which a paused one can be started again."""

    __tablename__ = "sandboxes"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    state: Mapped[str] = mapped_column(String(16), index=True)
    template: Mapped[str] = mapped_column(String(36))
    facts: Mapped[Json]
    snapshot: Mapped[str | None] = mapped_column(String(64))
    started: Mapped[float]
    paused: Mapped[float | None]
    ended: Mapped[float | None] = mapped_column(index=True)
    reason: Mapped[str | None] = mapped_column(Text)


class IdempotencyRow(Base):
    """A creation that a client may ask for again: what was asked (its digest) and which sandbox came of it."""

    __tablename__ = "idempotency"
    tenant: Mapped[str] = mapped_column(String(36), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    sandbox: Mapped[str] = mapped_column(String(36))
    created: Mapped[float] = mapped_column(index=True)


class TemplateRow(Base):
    """What sandboxes are made from, under a stable id; its tags say which build is meant. `kind` is `template` or `snapshot`.

    One without a tenant is built in and everybody's.
    """

    __tablename__ = "templates"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant: Mapped[str | None] = mapped_column(ForeignKey("tenants.id"), index=True)
    kind: Mapped[str] = mapped_column(String(16))
    name: Mapped[str | None] = mapped_column(String(128))
    public: Mapped[bool]
    source: Mapped[str | None] = mapped_column(String(36), index=True)
    """The sandbox that a snapshot was taken of."""
    created: Mapped[float]
    updated: Mapped[float]
    spawned: Mapped[int] = mapped_column(default=0)
    last_spawned: Mapped[float | None]

    __table_args__ = (Index("templates_by_name", "tenant", "name", unique=True),)


class BuildRow(Base):
    """One build of a template: `snapshot` (of the node) or `image` is what a sandbox starts from, once `status` is `ready`.

    `facts` holds resources, environment, user, working directory, the start and ready commands.
    """

    __tablename__ = "builds"
    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    template: Mapped[str] = mapped_column(ForeignKey("templates.id", ondelete="CASCADE"), index=True)
    status: Mapped[str] = mapped_column(String(16))
    image: Mapped[str | None] = mapped_column(String(256))
    snapshot: Mapped[str | None] = mapped_column(String(64))
    facts: Mapped[Json]
    created: Mapped[float]
    updated: Mapped[float]
    finished: Mapped[float | None]
    reason: Mapped[str | None] = mapped_column(Text)


class TagRow(Base):
    """A name for a build within its template, `default` where nobody says another."""

    __tablename__ = "tags"
    template: Mapped[str] = mapped_column(ForeignKey("templates.id", ondelete="CASCADE"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(128), primary_key=True)
    build: Mapped[str] = mapped_column(ForeignKey("builds.id", ondelete="CASCADE"))
    created: Mapped[float]


class SampleRow(Base):
    """Several measurements of a sandbox in a row, up to the moment `until`; see `agentenv.server.fleet.archive`."""

    __tablename__ = "samples"
    id: Mapped[int] = mapped_column(BIG, primary_key=True, autoincrement=True)
    sandbox: Mapped[str] = mapped_column(String(36))
    until: Mapped[float]
    data: Mapped[bytes] = mapped_column(LargeBinary)

    __table_args__ = (Index("samples_by_sandbox", "sandbox", "until"),)


class LogRow(Base):
    """A line about a sandbox or a build (`subject` is its id); `time` is unix milliseconds."""

    __tablename__ = "logs"
    id: Mapped[int] = mapped_column(BIG, primary_key=True, autoincrement=True)
    subject: Mapped[str] = mapped_column(String(36))
    time: Mapped[int] = mapped_column(BigInteger)
    level: Mapped[str] = mapped_column(String(8))
    message: Mapped[str] = mapped_column(Text)
    fields: Mapped[Json]

    __table_args__ = (Index("logs_by_subject", "subject", "time"), Index("logs_by_time", "time"))
