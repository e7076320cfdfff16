"""What an upload says of its files in headers `X-Metadata-KEY: VALUE`: kept as extended attributes, and shown with the files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentenv.server.envd.connect import Code, ConnectError
from agentenv.server.envd.entries import METADATA

HEADER = "x-metadata-"

LONGEST_KEY = 255 - len(METADATA)
"""Bytes that the name of an extended attribute leaves for a key."""

MOST = 4096
"""Bytes of all metadata of one file together, its names as they are kept included: what one inode surely has room for."""

_PLAIN = re.compile(r"[ -~]*", re.ASCII)


def metadata_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The metadata that headers (names in small letters) carry. Raises `ConnectError` for what cannot be kept."""
    found = {name.removeprefix(HEADER): value for name, value in headers.items() if name.startswith(HEADER) and name != HEADER}
    for key, value in found.items():
        if not (_PLAIN.fullmatch(key) and _PLAIN.fullmatch(value)):
            raise ConnectError(Code.INVALID_ARGUMENT, f"metadata {key!r} is not printable ASCII, as keys and values must be")
        if len(key) > LONGEST_KEY:
            raise ConnectError(Code.INVALID_ARGUMENT, f"the metadata key {key[:40]!r}… has {len(key)} bytes; {LONGEST_KEY} are the most")
    size = sum(len(METADATA) + len(key) + len(value) for key, value in found.items())
    if size > MOST:
        raise ConnectError(Code.INVALID_ARGUMENT, f"the metadata of a file takes {size} bytes; {MOST} are the most")
    return found
