"""The files of builds: archives that clients upload under the hash of what is in them, each tenant's by themselves.

Like an upload to an object store, an upload needs no API key but a link, which is signed and holds for an hour.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.errors import ConfigError, Unauthenticated
from agentenv.images.files import remove_tree
from agentenv.templates.e2b import check_hash

LINK_LIFETIME = 3600.0
KEPT = 7 * 24 * 3600.0
"""Seconds for which files that no build asked for since are kept."""

LARGEST = 16 << 30
_BUFFER = 4 << 20


@dataclass(frozen=True, slots=True)
class Uploads:
    """The archives below `directory`."""

    directory: Path
    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def find(self, tenant: str, name: str) -> Path | None:
        """A tenant's archive; None where it was not uploaded. Raises `ConfigError` for what is no hash."""
        path = self._place(tenant, name)
        if not path.is_file():
            return None
        path.touch()
        return path

    def sign(self, tenant: str, template: str, name: str) -> tuple[int, str]:
        """Until when a link for an upload holds (unix seconds), and its signature."""
        check_hash(name)
        expires = int(time.time() + LINK_LIFETIME)
        return expires, self._signature(tenant, template, name, expires)

    def check(self, tenant: str, template: str, name: str, expires: int, signature: str) -> None:
        """Raises `Unauthenticated` for a link that is not of this server's making, or too old."""
        expected = self._signature(tenant, template, name, expires)
        if not hmac.compare_digest(expected.encode(), signature.encode(errors="replace")) or expires < time.time():
            raise Unauthenticated("this link for an upload does not hold (any more).", remedy="Ask for another one.")

    async def receive(self, tenant: str, name: str, pieces: AsyncIterator[bytes]) -> int:
        """Writes an archive and returns its size; a broken-off upload leaves nothing. Raises `ConfigError` for one that is too large."""
        path = self._place(tenant, name)
        await asyncio.to_thread(path.parent.mkdir, 0o700, True, True)
        partial = path.with_name(f".{name}.{secrets.token_hex(4)}.partial")
        size = 0
        try:
            file = await asyncio.to_thread(partial.open, "wb")
            with file:
                waiting = bytearray()
                async for piece in pieces:
                    waiting += piece
                    size += len(piece)
                    if size > LARGEST:
                        raise ConfigError(
                            f"the files of one COPY are more than {LARGEST >> 30} GiB", remedy="Leave out what is not needed."
                        )
                    if len(waiting) >= _BUFFER:
                        await asyncio.to_thread(file.write, waiting)
                        waiting = bytearray()
                await asyncio.to_thread(file.write, waiting)
            await asyncio.to_thread(partial.replace, path)
        finally:
            await asyncio.to_thread(partial.unlink, True)
        return size

    def tidy(self) -> int:
        """Removes archives that nobody asked for in a week; returns how many."""
        removed = 0
        for path in self.directory.glob("*/*"):
            if path.stat().st_mtime < time.time() - KEPT:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def forget(self, tenant: str) -> None:
        """Removes all of a tenant's archives."""
        remove_tree(self.directory / tenant)

    def _place(self, tenant: str, name: str) -> Path:
        return self.directory / tenant / check_hash(name)

    def _signature(self, tenant: str, template: str, name: str, expires: int) -> str:
        return hmac.new(self._secret, f"{tenant}\0{template}\0{name}\0{expires}".encode(), hashlib.sha256).hexdigest()
