"""The bodies of E2B's routes about sandboxes, in E2B's JSON names (openapi.yml of the open `e2b-dev/E2B`), and how ours become theirs.

Fields that E2B knows and this server does not offer are accepted only with a value that changes nothing; others are `Unsupported`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentenv.errors import Unsupported
from agentenv.isolation.contract import Resources
from agentenv.server.access import Principal, Role
from agentenv.server.fleet import Lifecycle, NetworkRules, SandboxView, State, Wish

CLIENT = "agentenv"
"""The `clientID` of every sandbox: E2B's clients want one and use it for nothing."""

FAR = 24 * 3600.0
"""Seconds after its start that are shown as the end of a sandbox without one."""

Seconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
Texts = Annotated[dict[str, str], Field(max_length=1000)]
Priority = Annotated[int, Field(ge=-100, le=100)]


class Body(BaseModel):
    """A request's body. Unknown fields are let pass, since newer clients may send hints that older servers ignore."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nul(cls, data: Any) -> Any:
        """A NUL ends a string for half of the programs that would get to see it, and databases refuse it."""
        if _has_nul(data):
            raise ValueError("a NUL character stands in it; leave it out")
        return data


class Network(Body):
    """What a sandbox may reach, and who may reach it."""

    allowPublicTraffic: bool | None = None
    """Whether its ports are reached without its traffic token."""
    allowOut: list[str] = []
    """Addresses, ranges and domains that it may reach."""
    denyOut: list[str] = []
    """Addresses and ranges that it may not reach."""
    dnsServers: list[str] | None = None
    egressProxy: dict[str, Any] | None = None
    maskRequestHost: str | None = None
    """What the Host header of requests to its ports is replaced with."""
    httpsPorts: list[Annotated[int, Field(ge=1, le=65535)]] = []
    """Its ports that speak HTTPS."""
    rules: dict[str, Any] = {}

    def require_supported(self) -> None:
        """Raises `Unsupported`."""
        _refuse(dnsServers=self.dnsServers, egressProxy=self.egressProxy, rules=self.rules)

    def to_rules(self, internet: bool | None) -> NetworkRules:
        """As the fleet has it. Raises `Unsupported`."""
        self.require_supported()
        return NetworkRules(
            internet=internet,
            allow_out=tuple(self.allowOut),
            deny_out=tuple(self.denyOut),
            public_traffic=self.allowPublicTraffic is not False,
            request_host=self.maskRequestHost,
            https_ports=tuple(self.httpsPorts),
        )


class NetworkUpdate(Network):
    """The rules for outgoing traffic that are to hold from now on."""

    allow_internet_access: bool | None = None


class AutoResume(Body):
    """Whether traffic resumes a paused sandbox."""

    enabled: bool


class NewSandbox(Body):
    """A wished-for sandbox. `resources` and `priority` are our own."""

    templateID: Annotated[str, Field(min_length=1, max_length=300)]
    """The id or name of a template or snapshot, `:tag` allowed."""
    timeout: Seconds = 15
    """Seconds to live."""
    autoPause: bool = False
    autoPauseMemory: bool = True
    autoResume: AutoResume | None = None
    secure: bool | None = None
    """Of no effect: what runs in a sandbox is always reached with its token only."""
    allow_internet_access: bool | None = None
    network: Network | None = None
    metadata: Texts | None = None
    envVars: Texts | None = None
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volumeMounts: list[Any] | None = None
    cpuCount: Annotated[float, Field(gt=0, le=4096)] | None = None
    """Cores, where the template's number is not wanted."""
    memoryMB: Annotated[int, Field(ge=16, le=2**30)] | None = None
    diskSizeMB: Annotated[int, Field(ge=16, le=2**30)] | None = None
    priority: Priority = 0
    """Among a tenant's own starts that wait, the higher is first."""

    def to_wish(self) -> Wish:
        """As the fleet has it. Raises `Unsupported`."""
        _refuse(mcp=self.mcp, volumeMounts=self.volumeMounts, iam=(self.iam or {}).get("tokens"))
        network = self.network or Network()
        return Wish(
            template=self.templateID,
            timeout=float(self.timeout),
            lifecycle=Lifecycle(
                "pause" if self.autoPause else "kill", self.autoResume is not None and self.autoResume.enabled, self.autoPauseMemory
            ),
            network=network.to_rules(self.allow_internet_access),
            metadata=self.metadata or {},
            env=self.envVars or {},
            resources=Resources(cpu=self.cpuCount, memory=_bytes(self.memoryMB), storage=_bytes(self.diskSizeMB), pids=None),
            priority=self.priority,
        )


class NewSandboxV2(NewSandbox):
    """The same, with the longer default of the second generation."""

    timeout: Seconds = 300
    """Seconds to live."""


class Connect(Body):
    """How long a sandbox is to live at least. Without `memory`, a paused one is started anew from its files."""

    timeout: Seconds
    memory: bool | None = None


class ConnectV2(Connect):
    """The same, with a default."""

    timeout: Seconds = 300


class Resumed(Body):
    """How long a resumed sandbox is to live."""

    timeout: Seconds = 15
    autoPause: bool | None = None
    memory: bool | None = None


class Pause(Body):
    """Whether a pause keeps the memory."""

    memory: bool = True
    requireHealthyGuest: bool | None = None


class Timeout(Body):
    """Seconds from now after which it ends."""

    timeout: Seconds


class Refresh(Body):
    """Seconds for which it is to be kept alive at least."""

    duration: Annotated[int, Field(ge=0, le=3600)] = 15


class ForkRequest(Body):
    """How many forks, and how long they are to live."""

    timeout: Seconds = 15
    count: Annotated[int, Field(ge=1, le=100)] = 1


class SnapshotRequest(Body):
    """How to call a snapshot, and whether it holds memory too."""

    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    memory: bool | None = None


class Sandbox(BaseModel):
    """A sandbox that was created, resumed or connected to, with its credentials."""

    templateID: str
    sandboxID: str
    clientID: str = CLIENT
    alias: str | None = None
    envdVersion: str
    envdAccessToken: str
    trafficAccessToken: str
    domain: str


class LifecycleInfo(BaseModel):
    """What happens at the end of its time, and whether traffic wakes it."""

    autoResume: bool
    onTimeout: Literal["kill", "pause"]


class ListedSandbox(BaseModel):
    """A sandbox in a list."""

    templateID: str
    sandboxID: str
    clientID: str = CLIENT
    alias: str | None = None
    startedAt: datetime
    endAt: datetime
    cpuCount: int
    memoryMB: int
    diskSizeMB: int
    state: Literal["running", "paused"]
    envdVersion: str
    metadata: dict[str, str]
    parentID: str | None = None
    """The sandbox that it was forked from."""


class SandboxDetail(ListedSandbox):
    """All about a sandbox. Keys that may only read do not get its token."""

    envdAccessToken: str | None = None
    allowInternetAccess: bool | None = None
    domain: str
    network: dict[str, Any]
    lifecycle: LifecycleInfo
    pauseMode: Literal["full", "filesystem"] | None = None
    user: str


class ErrorBody(BaseModel):
    """What went wrong."""

    code: int
    message: str
    type: str | None = None
    remedy: str | None = None


class ForkResult(BaseModel):
    """Either a fork, or why it did not start."""

    sandbox: Sandbox | None = None
    error: ErrorBody | None = None


class SnapshotInfo(BaseModel):
    """A snapshot: what to name it by, and all its names."""

    snapshotID: str
    names: list[str]
    sourceID: str | None = None
    """The sandbox that it was taken of."""
    createdAt: datetime


def sandbox_of(view: SandboxView) -> Sandbox:
    """A sandbox with its credentials."""
    return Sandbox(
        templateID=view.template,
        sandboxID=view.id,
        alias=view.alias,
        envdVersion=view.envd_version,
        envdAccessToken=view.envd_access_token,
        trafficAccessToken=view.traffic_access_token,
        domain=view.domain,
    )


def listed(view: SandboxView) -> ListedSandbox:
    """A sandbox as lists have it."""
    return ListedSandbox(**_common(view))


def detail(view: SandboxView, principal: Principal) -> SandboxDetail:
    """All that `principal` may know of a sandbox."""
    return SandboxDetail(
        **_common(view),
        envdAccessToken=None if principal.role is Role.READ_ONLY else view.envd_access_token,
        allowInternetAccess=view.network.internet,
        domain=view.domain,
        network=network_of(view),
        lifecycle=LifecycleInfo(autoResume=view.lifecycle.auto_resume, onTimeout=view.lifecycle.on_timeout),
        pauseMode=view.pause_mode,
        user=view.user,
    )


def network_of(view: SandboxView) -> dict[str, Any]:
    """A sandbox's rules in E2B's names."""
    rules = view.network
    network = {
        "allowPublicTraffic": rules.public_traffic,
        "allowOut": list(rules.allow_out),
        "denyOut": list(rules.deny_out),
        "maskRequestHost": rules.request_host,
        "httpsPorts": list(rules.https_ports),
    }
    return {name: value for name, value in network.items() if value is not None}


def moment(seconds: float) -> datetime:
    """A time as JSON has it."""
    return datetime.fromtimestamp(seconds, UTC)


def _common(view: SandboxView) -> dict[str, Any]:
    limits = view.resources
    # A paused sandbox has no end; E2B's clients want a time nevertheless.
    end = view.end if view.end is not None and view.state is not State.PAUSED else view.started + (view.timeout or FAR)
    return {
        "templateID": view.template,
        "sandboxID": view.id,
        "alias": view.alias,
        "startedAt": moment(view.started),
        "endAt": moment(end),
        "cpuCount": whole_cores(limits.cpu),
        "memoryMB": (limits.memory or machine_memory()) >> 20,
        "diskSizeMB": (limits.storage or 0) >> 20,
        "state": view.state.shown,
        "envdVersion": view.envd_version,
        "metadata": dict(view.metadata),
        "parentID": view.parent,
    }


def _has_nul(data: object) -> bool:
    if isinstance(data, str):
        return "\0" in data
    if isinstance(data, Mapping):
        return any(_has_nul(key) or _has_nul(value) for key, value in data.items())
    return isinstance(data, list) and any(_has_nul(value) for value in data)


def whole_cores(limit: float | None) -> int:
    """A limit of cores as a whole number; without one, those of the machine."""
    return math.ceil(limit or os.cpu_count() or 1)


def machine_memory() -> int:
    """The memory of this machine in bytes: what a sandbox without a limit may use."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _bytes(mebibytes: int | None) -> int | None:
    return None if mebibytes is None else mebibytes << 20


def _refuse(**fields: object) -> None:
    for name, value in fields.items():
        if value:
            raise Unsupported(f"this server does not offer {name!r}.", remedy=WITHOUT.get(name, "Leave it out."))


WITHOUT: Mapping[str, str] = {
    "mcp": "Start the MCP server in the sandbox with a command.",
    "volumeMounts": "Upload the files, or make a template that holds them.",
    "iam": "Hand credentials over as environment variables.",
    "egressProxy": "Set the proxy's address in the environment of the programs.",
}
"""What to do instead of some of the things that are not offered."""
