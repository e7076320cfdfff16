"""Routes of E2B that this server knows and does not offer: each answers 501 with the reason and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter, Request

from agentenv.errors import Unsupported

router = APIRouter(include_in_schema=False)

REASONS: Mapping[str, str] = {
    "/volumes": "Volumes are not offered: upload files, or keep them in a template or snapshot.",
    "/volumes/{rest:path}": "Volumes are not offered: upload files, or keep them in a template or snapshot.",
    "/secrets": "Stored secrets are not offered: hand them over as environment variables of a sandbox.",
    "/secrets/{rest:path}": "Stored secrets are not offered: hand them over as environment variables of a sandbox.",
    "/access-tokens": "Access tokens are not offered: an API key does all of it.",
    "/access-tokens/{rest:path}": "Access tokens are not offered: an API key does all of it.",
    "/teams/{rest:path}": "Metrics of a tenant are at /whoami and, for the operator, at /metrics.",
    "/admin/teams/{rest:path}": "Tenants are administered at /admin/tenants.",
    "/admin/sandboxes/running-counts": "The counts are at /admin/tenants.",
}
"""The path of each, and what to say."""

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


async def refuse(request: Request) -> None:
    """Says why not."""
    raise Unsupported(REASONS[request.scope["route"].path])


for _path in REASONS:
    router.add_api_route(_path, refuse, methods=_METHODS)
