"""What the fleet is asked for and what it tells: plain, frozen data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agentenv.isolation.contract import Resources
from agentenv.server.catalogue import Build

ENVD_VERSION = "0.6.4"
"""The version of E2B's in-sandbox API (envd) that this server speaks; clients choose their calls by it."""


class State(enum.StrEnum):
    """Where a sandbox stands. The two outer ones, `running` and `paused`, are what clients see; the others say what is under way."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    ENDED = "ended"

    @property
    def shown(self) -> Literal["running", "paused"]:
        """As clients see it: a change shows when it is complete."""
        return "paused" if self in (State.PAUSED, State.RESUMING) else "running"


PauseMode = Literal["full", "filesystem"]
"""What a pause kept: `full` is memory and files, `filesystem` the files only, so that resuming starts the sandbox anew from them."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """What happens when the time is over, and whether traffic wakes a paused sandbox.

    `pause_memory` says whether a pause for the time's end keeps the memory.
    """

    on_timeout: Literal["kill", "pause"] = "kill"
    auto_resume: bool = False
    pause_memory: bool = True


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """What a sandbox may reach, and who may reach it. `internet` None leaves it to the server's settings.

    `connected` has it have a network that can be opened later, also where nothing may be reached yet.
    Without `public_traffic`, its ports are reached only with its traffic token. `https_ports` serve HTTPS inside; `request_host` replaces
    the Host header of what is passed in (`${PORT}` stands for the port). `upload` and `download` are bytes a second, None is unlimited.
    """

    internet: bool | None = None
    allow_out: tuple[str, ...] = ()
    deny_out: tuple[str, ...] = ()
    public_traffic: bool = True
    request_host: str | None = None
    https_ports: tuple[int, ...] = ()
    upload: int | None = None
    download: int | None = None
    connected: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """One wished-for sandbox, from a template, or from `source` where there is one.

    `timeout` in seconds, None where somebody else sees to its end; of `resources`, None leaves a limit to the template; the higher
    `priority` starts first.
    """

    template: str
    timeout: float | None = 300.0
    lifecycle: Lifecycle = Lifecycle()
    network: NetworkRules = NetworkRules()
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=lambda: Resources(pids=None))
    priority: int = 0
    source: Build | None = None
    """What it starts from, for parts of the server that have no template for it (`agentenv.server.catalogue.loose` makes one)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What stays true of a sandbox from its creation on. Two sandboxes never share a token."""

    template: str
    build: str
    alias: str | None
    envd_token: str
    traffic_token: str
    timeout: float | None
    lifecycle: Lifecycle
    network: NetworkRules
    resources: Resources
    metadata: Mapping[str, str]
    env: Mapping[str, str]
    user: str
    cwd: str | None
    parent: str | None = None
    """The sandbox that this one was forked from."""

    def to_json(self) -> dict[str, Any]:
        """As the database keeps it."""
        return asdict(self) | {"metadata": dict(self.metadata), "env": dict(self.env)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """What `to_json` gave."""
        network: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data["network"].items()}
        return cls(
            **{
                **data,
                "lifecycle": Lifecycle(**data["lifecycle"]),
                "network": NetworkRules(**network),
                "resources": Resources(**data["resources"]),
            }
        )


@dataclass(frozen=True, slots=True)
class SandboxView:
    """A sandbox as it is now. Times are unix seconds; `tenant` is the id of whose it is.

    The three credentials are never interchangeable: an API key acts on the sandbox from outside, `envd_access_token` on its processes and
    files, `traffic_access_token` reaches its ports where `network.public_traffic` is off. `env` is for every process that is started in it
    through the in-sandbox API, as are `user` and `cwd` (None: the user's home) where the call names none.
    """

    id: str
    tenant: str
    state: State
    template: str
    build: str
    alias: str | None
    envd_access_token: str = field(repr=False)
    traffic_access_token: str = field(repr=False)
    domain: str
    started: float
    end: float | None
    timeout: float | None
    lifecycle: Lifecycle
    network: NetworkRules
    resources: Resources
    metadata: Mapping[str, str]
    env: Mapping[str, str]
    user: str
    cwd: str | None
    parent: str | None
    pause_mode: PauseMode | None
    machine: str | None
    """The node's id of the machine that it runs on now (`agentenv ls` shows it); None while there is none."""
    envd_version: str = ENVD_VERSION
