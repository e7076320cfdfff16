"""Brings the tables of an older version up to date, one step a version. What a step did is never changed later; a new step is added."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, insert, inspect, select, update

from agentenv.errors import InfrastructureError
from agentenv.server.database.tables import Base, SampleRow, SchemaVersion


def _keep_samples(connection: Connection) -> None:
    Base.metadata.tables[SampleRow.__tablename__].create(connection)


STEPS: tuple[Callable[[Connection], None], ...] = (_keep_samples,)
"""What leads from version n to n + 1 is `STEPS[n - 1]`."""

CURRENT = len(STEPS) + 1


def migrate(connection: Connection, name: str) -> None:
    """Makes the tables in an empty database, or changes those that are there. Raises `InfrastructureError` for those of a newer version."""
    if not inspect(connection).has_table(SchemaVersion.__tablename__):
        Base.metadata.create_all(connection)
        connection.execute(insert(SchemaVersion).values(version=CURRENT))
        return
    found = connection.execute(select(SchemaVersion.version)).scalar_one()
    if found > CURRENT:
        raise InfrastructureError(
            f"the database {name} has tables of version {found}, and this AgentENV knows them up to {CURRENT}.",
            remedy="Use the newer AgentENV that made them, or another database.",
        )
    for step in STEPS[found - 1 :]:
        step(connection)
    if found < CURRENT:
        connection.execute(update(SchemaVersion).values(version=CURRENT))
