"""How far this process fetches over HTTP, for itself or for others whom the network around it is no business of."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True)
class Reach:
    """Where may be fetched from: everywhere, or the public internet and the `named` hosts (`HOST` or `HOST:PORT`).

    To these come those that the environment names in AGENTENV_INSECURE_REGISTRIES and AGENTENV_REGISTRY_MIRRORS.
    """

    everywhere: bool = True
    named: frozenset[str] = frozenset()

    @classmethod
    def public(cls, named: Collection[str] = ()) -> Reach:
        """The public internet, with what is `named`."""
        return cls(False, frozenset(named))

    def client(self, **options: Any) -> httpx.Client:
        """A client that reaches this far, with httpx's other `options`. Beyond, its requests raise `CapabilityError`.

        Where the environment names a proxy, that decides: names are looked up there.
        """
        # Loaded here: httpx takes a tenth of a second, which only those pay who fetch something.
        import httpx

        from agentenv.images.public_transport import PublicTransport

        if self.everywhere or any(name in getproxies() for name in ("http", "https", "all")):
            return httpx.Client(**options)
        return httpx.Client(transport=PublicTransport(self.named | _of_environment()), **options)


def _of_environment() -> frozenset[str]:
    insecure = os.environ.get("AGENTENV_INSECURE_REGISTRIES", "").split(",")
    mirrors = [entry.partition("=")[2] for entry in os.environ.get("AGENTENV_REGISTRY_MIRRORS", "").split(",")]
    return frozenset(entry.strip().rpartition("://")[2].partition("/")[0] for entry in (*insecure, *mirrors)) - {""}
