"""API keys and tokens: made, digested, compared.

A key made here has 160 random bits, so a plain digest keeps it safe where it lies, and looking it up by that digest tells an attacker
nothing of the key; the digest that was found is still compared in constant time. The form is that of E2B's keys.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from agentenv.errors import ConfigError

SHORTEST_GIVEN = 16
"""Characters that a key must have which an operator chooses."""


def new_key() -> str:
    """A fresh API key."""
    return f"e2b_{secrets.token_hex(20)}"


def new_token() -> str:
    """A fresh token of one sandbox."""
    return secrets.token_urlsafe(32)


def check_given(key: str, where: str) -> None:
    """Raises `ConfigError` for a chosen key that is too easy to guess or cannot stand in a header."""
    if len(key) < SHORTEST_GIVEN or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"the key in {where} must be {SHORTEST_GIVEN} or more printable ASCII characters without spaces",
            remedy="Leave it out and one is made, or use the output of `openssl rand -hex 20`.",
        )


def digest(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode()).digest()


def mask(key: str) -> str:
    """What people recognise a key by."""
    return f"{key[:6]}…{key[-4:]}"


def same(expected: str | bytes, presented: str | bytes) -> bool:
    """Whether two secrets are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(_bytes(expected), _bytes(presented))


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret
