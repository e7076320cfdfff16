"""Here both kinds of database are tried each time."""

from __future__ import annotations

import pytest
from tests.server.postgres import needs_postgres


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=needs_postgres)])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """The URL of an empty database of each kind; None is SQLite where the server has its own."""
    return request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
