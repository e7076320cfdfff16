"""Who is signed in: a cookie that names a key of a tenant, signed with a secret of this server. The key itself is never in it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from itsdangerous import BadData, URLSafeTimedSerializer

from agentenv.errors import NotFound, Unauthenticated
from agentenv.server.access import Access, Principal

COOKIE = "agentenv-session"
LIFETIME = 12 * 3600
"""Seconds after which one has to sign in again."""


@dataclass(frozen=True, slots=True)
class Session:
    """What the cookie says: which key of which tenant; `id` tells apart two times of signing in."""

    id: str
    tenant: str
    key: str


class Sessions:
    """Begins, recognises and ends sessions. One ends, too, when its key does."""

    def __init__(self, access: Access, secret: bytes) -> None:
        self._access = access
        self._signer = URLSafeTimedSerializer(secret, salt="agentenv.dashboard")
        self._ended: dict[str, float] = {}

    def begin(self, principal: Principal) -> str:
        """The cookie's value for somebody who has shown a key."""
        return self._signer.dumps([secrets.token_hex(8), principal.tenant.id, principal.key])

    def read(self, cookie: str | None) -> Session:
        """The session of a cookie. Raises `Unauthenticated` for none, a false or an old one, and one that has ended."""
        try:
            session = Session(*self._signer.loads(cookie or "", max_age=LIFETIME))
        except (BadData, TypeError):
            raise Unauthenticated("nobody is signed in.", remedy="Sign in with an API key.") from None
        self.principal(session)
        return session

    def principal(self, session: Session) -> Principal:
        """Who that is, with the role of this moment. Raises `Unauthenticated` when the session or its key has ended."""
        try:
            tenant = self._access.tenant(session.tenant)
            key = self._access.key_of(tenant, session.key)
        except NotFound:
            raise Unauthenticated("the key of this session is gone.", remedy="Sign in with another one.") from None
        if session.id in self._ended:
            raise Unauthenticated("this session has ended.", remedy="Sign in again.")
        return Principal(tenant, key.role, key.id, key.name)

    def end(self, session: Session) -> None:
        """Whoever has this cookie is nobody from now on."""
        now = time.monotonic()
        self._ended = {name: since for name, since in self._ended.items() if now - since < LIFETIME}
        self._ended[session.id] = now


def read_secret(directory: Path) -> bytes:
    """The secret that cookies are signed with, made where there is none: those of before stay good when the server starts again."""
    file = directory / "dashboard-secret"
    try:
        file.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        if len(known := file.read_bytes()) >= 32:
            return known
    file.write_bytes(secret := secrets.token_bytes(32))
    return secret
