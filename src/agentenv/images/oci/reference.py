"""References to images in registries: `localhost:5000/team/app:1.2`, `docker.io/library/python@sha256:…`.

The grammar is that of https://github.com/distribution/reference. A registry is always named here, so that no reference can be taken for one
of AgentENV's own (`host`, `debian`, `dir:PATH`, …); `from_docker` also takes the short names that Dockerfiles have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DOCKER_HUB = "docker.io"
_HOST = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:(?P<registry>{_HOST})/)?(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_MOST = 255


@dataclass(frozen=True, slots=True)
class Reference:
    """An image in a registry. `registry` is host[:port]; with a `digest` (`sha256:…`, of the manifest or index) the tag says nothing."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference | None:
        """The reference that `text` is; None where it is none or names no registry. Without tag and digest the tag is `latest`."""
        found = _REFERENCE.fullmatch(text)
        if found is None or found["registry"] is None or not _is_host(found["registry"]) or len(found["repository"]) > _MOST:
            return None
        repository = found["repository"]
        if found["registry"] == DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(found["registry"], repository, found["tag"] or (None if found["digest"] else "latest"), found["digest"])

    @classmethod
    def from_docker(cls, text: str) -> Reference | None:
        """The same, where a name without a registry is one of Docker Hub: `python:3.12`, `team/app`."""
        if (named := cls.parse(text)) is not None:
            return named
        first = text.partition("/")[0]
        return None if "/" in text and _is_host(first) else cls.parse(f"{DOCKER_HUB}/{text}")

    @property
    def wanted(self) -> str:
        """What the registry is asked for: the digest where there is one, else the tag."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}{f'@{self.digest}' if self.digest else ''}"


def _is_host(text: str) -> bool:
    """Whether the first part of a name is a registry and not a part of a repository, as Docker decides it."""
    return "." in text or ":" in text or text == "localhost"
