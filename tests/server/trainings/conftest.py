"""Two runs that differ in one setting."""

from __future__ import annotations

from tests.server.dashboard.conftest import runs_directory

__all__ = ["runs_directory"]
