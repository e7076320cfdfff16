"""Which server, and with what key."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from agentenv.errors import ConfigError, Unauthenticated
from agentenv.paths import KEY_VARIABLE, SERVER_VARIABLE

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's base `url` (http or https, with no slash at its end) and the key that it is spoken to with."""

    url: str
    api_key: str = field(repr=False)

    @classmethod
    def find(cls, server: str | None = None, api_key: str | None = None) -> ServerAddress:
        """What is not given is taken from AGENTENV_SERVER and AGENTENV_API_KEY.

        Raises `ConfigError` for an address that is none, `Unauthenticated` without a key.
        """
        url = (server or os.environ.get(SERVER_VARIABLE, "")).rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"{url!r} is not the address of a server", key="server", remedy="Write it as http://HOST:PORT.")
        key = api_key or os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise Unauthenticated(f"there is no API key for {url}.", remedy=f"Pass api_key=…, or set {KEY_VARIABLE}.")
        return cls(url, key)

    @property
    def secure(self) -> bool:
        """Whether it is spoken to over TLS."""
        return self.url.startswith("https:")

    @property
    def host(self) -> str:
        """Its name or address."""
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Its TCP port."""
        parts = urlsplit(self.url)
        return parts.port or _PORTS[parts.scheme]

    @property
    def path(self) -> str:
        """What comes before each path, where the server does not have the host for itself."""
        return urlsplit(self.url).path
