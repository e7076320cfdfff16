"""What outlives the server's process: tenants, keys, sandboxes, templates, logs. SQLite by default, PostgreSQL by URL."""

from agentenv.server.database.database import Database

__all__ = ["Database"]
