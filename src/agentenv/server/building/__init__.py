"""Builds of templates on the server: the files that clients upload for them, and running a few of them at a time."""

from agentenv.server.building.builds import TemplateBuilds
from agentenv.server.building.uploads import Uploads

__all__ = ["TemplateBuilds", "Uploads"]
