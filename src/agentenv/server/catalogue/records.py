"""Templates, their builds and their tags, as plain data. Times are unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentenv.isolation.contract import Resources

Kind = Literal["template", "snapshot"]
BuildStatus = Literal["waiting", "building", "ready", "error"]
DEFAULT_TAG = "default"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a build gives its sandboxes beside files. In `resources`, None leaves a limit to the server's settings.

    `env` holds for every process; `user` and `cwd` for commands that name none (a None `cwd` is the user's home). `start_command` runs in
    the background of a fresh sandbox, `ready_command` until it succeeds, where no snapshot of memory holds the started process.
    """

    resources: Resources = field(default_factory=lambda: Resources(pids=None))
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "user"
    cwd: str | None = None
    start_command: str | None = None
    ready_command: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the database keeps it."""
        return {**asdict(self), "resources": asdict(self.resources), "env": dict(self.env)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """What `to_json` gave."""
        return cls(**{**data, "resources": Resources(**data["resources"])})


@dataclass(frozen=True, slots=True)
class Build:
    """One build of a template. Sandboxes start from `snapshot` (a node's snapshot id), or from `image` where there is none."""

    id: str
    template: str
    status: BuildStatus
    image: str | None
    snapshot: str | None
    recipe: Recipe
    created: float
    updated: float
    finished: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A template or a snapshot: a stable id with tags that point to builds. Without a tenant it is built in and everybody's.

    `source` is the sandbox that a snapshot was taken of.
    """

    id: str
    tenant: str | None
    kind: Kind
    name: str | None
    public: bool
    source: str | None
    created: float
    updated: float
    spawned: int = 0
    last_spawned: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tag to the id of its build."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A template with the build that a reference meant."""

    template: Template
    build: Build
    tag: str | None = None
