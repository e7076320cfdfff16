"""What the builds of tenants may begin with: their templates and public ones, images of registries, and AgentENV's own."""

from __future__ import annotations

from dataclasses import dataclass

from agentenv.errors import ConfigError
from agentenv.images.oci import Reference
from agentenv.images.oci.registry import is_insecure, is_local
from agentenv.node.templates import SCHEME
from agentenv.server.access import Tenant
from agentenv.server.catalogue import BASE, Catalogue
from agentenv.server.fleet.ground import Ground
from agentenv.templates.build import Base
from agentenv.templates.e2b import registry_image
from agentenv.templates.state import State

BASE_IMAGE = "docker.io/e2bdev/base"
"""What E2B's builder begins with where nobody says otherwise; here that is the server's own template `base`."""


@dataclass(frozen=True, slots=True)
class Bases:
    """Finds them."""

    catalogue: Catalogue
    ground: Ground

    def find(self, tenant: Tenant, name: str) -> Base | str:
        """What the name of a base means to a tenant: a snapshot, or the reference of an image.

        Raises `NotFound` and `InvalidState` for a template, `ConfigError` for an image that tenants may not name.
        """
        if name.startswith(SCHEME):
            return self._template(tenant, name.removeprefix(SCHEME))
        image = registry_image(name)
        reference = Reference.parse(image)
        if reference is not None and f"{reference.registry}/{reference.repository}" == BASE_IMAGE:
            return self._template(tenant, BASE)
        # This machine's own services are not reached through a build, but for registries that whoever runs the server has named.
        if reference is not None and is_local(reference.registry) and not is_insecure(reference.registry):
            raise ConfigError(
                f"the registry {reference.registry} is not to be used here",
                remedy="Whoever runs the server can name it in AGENTENV_INSECURE_REGISTRIES.",
            )
        return image

    def _template(self, tenant: Tenant, name: str) -> Base | str:
        chosen = self.catalogue.choose(tenant.id, name)
        recipe, snapshot = chosen.build.recipe, chosen.build.snapshot
        if snapshot is None:
            return chosen.build.image or self.ground.image
        state = State(dict(recipe.env), {}, recipe.user, recipe.cwd or f"/home/{recipe.user}")
        return Base(snapshot, state, f"{SCHEME}{chosen.template.name or chosen.template.id}")
