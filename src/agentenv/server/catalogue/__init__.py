"""What sandboxes are made from: templates and snapshots with their builds and tags. Who builds templates records it here."""

from agentenv.server.catalogue.catalogue import BASE, Catalogue, check_name, check_tag, loose
from agentenv.server.catalogue.records import DEFAULT_TAG, Build, Chosen, Recipe, Template

__all__ = ["BASE", "DEFAULT_TAG", "Build", "Catalogue", "Chosen", "Recipe", "Template", "check_name", "check_tag", "loose"]
