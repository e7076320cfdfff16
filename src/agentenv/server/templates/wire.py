"""The bodies of E2B's routes about templates, in E2B's JSON names (openapi.yml of the open `e2b-dev/E2B`), and how ours become theirs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from agentenv.errors import ConfigError, Unsupported
from agentenv.images.oci import Credentials
from agentenv.isolation.contract import Resources
from agentenv.server.catalogue import DEFAULT_TAG, Build, Template
from agentenv.server.catalogue.records import BuildStatus
from agentenv.server.fleet import ENVD_VERSION, LogLine
from agentenv.server.fleet.ground import Ground

Name = Annotated[str, Field(min_length=1, max_length=300)]
Tags = Annotated[list[Annotated[str, Field(min_length=1, max_length=128)]], Field(max_length=100)]
CpuCount = Annotated[int, Field(ge=1, le=4096)]
MemoryMB = Annotated[int, Field(ge=16, le=2**30)]
Level = Literal["debug", "info", "warn", "error"]


class Body(BaseModel):
    """A request's body. Unknown fields are let pass, since newer clients may send hints that older servers ignore."""

    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


class NewTemplate(Body):
    """A wished-for build of a template, which is made where there is none of that name."""

    name: Name | None = None
    """`NAME` or `NAME:TAG`."""
    alias: Name | None = None
    """The older word for `name`."""
    tags: Tags = []
    """What the build is to be called besides."""
    teamID: str | None = None
    cpuCount: CpuCount | None = None
    memoryMB: MemoryMB | None = None
    minFreeDiskMb: Annotated[int, Field(ge=0, le=2**30)] | None = None
    """Of no effect: files grow until the sandbox's limit of storage."""

    def names(self) -> tuple[str, tuple[str, ...]]:
        """The template's name, and the tags of the build. Raises `ConfigError`."""
        wanted = self.name or self.alias
        if not wanted:
            raise ConfigError("a template needs a name", key="name")
        name, _, tag = wanted.partition(":")
        return name, tuple(dict.fromkeys([tag or DEFAULT_TAG, *self.tags]))

    def resources(self) -> Resources:
        """The limits of its sandboxes."""
        return resources_of(self.cpuCount, self.memoryMB)


class Step(Body):
    """A step of a build."""

    type: Annotated[str, Field(min_length=1, max_length=32)]
    args: Annotated[list[str], Field(max_length=1000)] = []
    filesHash: Annotated[str, Field(max_length=128)] | None = None
    force: bool = False


class RegistryLogin(Body):
    """Who a registry is to be asked as for `fromImage`: for one build, kept in memory until that ends."""

    type: Literal["registry", "aws", "gcp"]
    username: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    password: Annotated[SecretStr, Field(min_length=1, max_length=10_000)] | None = None
    serviceAccountJson: Annotated[SecretStr, Field(min_length=1, max_length=100_000)] | None = None
    """Google's key of a service account, with `gcp`."""

    def credentials(self) -> Credentials:
        """As the registry takes them. Raises `Unsupported`, `ConfigError` for what is missing."""
        if self.type == "aws":
            raise Unsupported(
                "this server does not ask AWS for the password of a registry.",
                remedy="Ask for it yourself (`aws ecr get-login-password`) and give it as the password of the user AWS.",
            )
        # https://cloud.google.com/artifact-registry/docs/docker/authentication#json-key
        user, secret = ("_json_key", self.serviceAccountJson) if self.type == "gcp" else (self.username, self.password)
        if user is None or secret is None:
            wanted = "serviceAccountJson" if self.type == "gcp" else "username and password"
            raise ConfigError(f"a login of the type {self.type} has {wanted}", key="fromImageRegistry")
        return Credentials(user, secret.get_secret_value())


class StartBuild(Body):
    """What a build does."""

    fromImage: Annotated[str, Field(max_length=500)] | None = None
    fromTemplate: Name | None = None
    fromImageRegistry: RegistryLogin | None = None
    force: bool = False
    steps: Annotated[list[Step], Field(max_length=400)] = []
    startCmd: str | None = None
    readyCmd: str | None = None
    dockerfile: Annotated[str, Field(max_length=1 << 20)] | None = None
    """Our own: a Dockerfile in the place of base and steps."""
    context: Annotated[str, Field(max_length=128)] | None = None
    """Our own: the hash under which the Dockerfile's directory was uploaded."""
    target: Annotated[str, Field(max_length=128)] | None = None
    """Our own: the Dockerfile's last stage."""
    args: dict[str, str] = {}
    """Our own: values for the Dockerfile's ARGs."""

    def to_build(self) -> dict[str, Any]:
        """As the builder takes it, with `login` among it. Raises `Unsupported`, `ConfigError`."""
        given = self.fromImageRegistry
        if given is not None and not self.fromImage:
            raise ConfigError("a login to a registry goes with fromImage", key="fromImageRegistry")
        return {**self.model_dump(exclude={"fromImageRegistry"}), "login": given and given.credentials()}


class RequestedBuild(BaseModel):
    """A build that waits for its steps."""

    templateID: str
    buildID: str
    public: bool
    names: list[str]
    tags: list[str]
    aliases: list[str]


class TemplateInfo(BaseModel):
    """A template as it is now."""

    templateID: str
    buildID: str
    cpuCount: int
    memoryMB: int
    diskSizeMB: int
    public: bool
    aliases: list[str]
    names: list[str]
    createdAt: datetime
    updatedAt: datetime
    createdBy: None = None
    lastSpawnedAt: datetime | None
    spawnCount: int
    buildCount: int
    envdVersion: str = ENVD_VERSION
    buildStatus: BuildStatus


class BuildInfo(BaseModel):
    """A build of a template."""

    buildID: str
    status: BuildStatus
    createdAt: datetime
    updatedAt: datetime
    finishedAt: datetime | None = None
    cpuCount: int
    memoryMB: int
    diskSizeMB: int
    envdVersion: str = ENVD_VERSION


class TemplateWithBuilds(TemplateInfo):
    """A template with its builds, the latest first."""

    builds: list[BuildInfo]


class BuildLogEntry(BaseModel):
    """A line of a build, and of which step it is."""

    timestamp: datetime
    message: str
    level: Level
    step: str | None = None


class BuildReason(BaseModel):
    """Why a build failed: at which step (its number, `base` or `finalize`)."""

    message: str
    step: str | None = None
    logEntries: list[BuildLogEntry] = []


class BuildState(BaseModel):
    """How far a build is, with lines of its log."""

    templateID: str
    buildID: str
    status: BuildStatus
    logEntries: list[BuildLogEntry]
    logs: list[str] = []
    reason: BuildReason | None = None


class BuildLogs(BaseModel):
    """Lines of a build's log."""

    logs: list[BuildLogEntry]


class FileUpload(BaseModel):
    """Whether the files are here, and where they can be uploaded to with PUT."""

    present: bool
    url: str | None = None


class AliasInfo(BaseModel):
    """What a name means."""

    templateID: str
    public: bool


class TemplateUpdate(Body):
    """What of a template is to change."""

    public: bool | None = None


class UpdatedTemplate(BaseModel):
    """The names of a template that was changed."""

    names: list[str]


class AssignTags(Body):
    """Tags that are to mean what `target` (`NAME` or `NAME:TAG`) means."""

    target: Name
    tags: Annotated[Tags, Field(min_length=1)]


class AssignedTags(BaseModel):
    """Tags, and the build that they mean."""

    tags: list[str]
    buildID: str


class RemoveTags(Body):
    """Tags of a template that are to mean nothing any more."""

    name: Name
    tags: Annotated[Tags, Field(min_length=1)]


class TagInfo(BaseModel):
    """A tag, and the build that it means."""

    tag: str
    buildID: str
    createdAt: datetime


def resources_of(cores: int | None, memory_mb: int | None) -> Resources:
    """The limits of a template's sandboxes."""
    return Resources(cpu=cores, memory=None if memory_mb is None else memory_mb << 20, pids=None)


def template_info(template: Template, builds: Sequence[Build], ground: Ground) -> TemplateInfo:
    """A template for its owner; `builds` are all of it, the latest first."""
    return TemplateInfo(**_facts(template, builds, ground))


def template_with_builds(template: Template, builds: Sequence[Build], shown: Sequence[Build], ground: Ground) -> TemplateWithBuilds:
    """The same with some of its builds."""
    return TemplateWithBuilds(**_facts(template, builds, ground), builds=[_build(build, ground) for build in shown])


def log_entry(line: LogLine) -> BuildLogEntry:
    """A line of the logbook."""
    return BuildLogEntry(timestamp=_moment(line.time / 1000), message=line.message, level=line.level, step=line.fields.get("step") or None)


def tag_info(tag: str, build: Build) -> TagInfo:
    """A tag of a build."""
    return TagInfo(tag=tag, buildID=build.id, createdAt=_moment(build.finished or build.created))


def _facts(template: Template, builds: Sequence[Build], ground: Ground) -> dict[str, Any]:
    latest = builds[0] if builds else None
    limits = _limits(latest, ground)
    return {
        "templateID": template.id,
        "buildID": latest.id if latest else template.id,
        **limits,
        "public": template.public,
        "aliases": [template.name] if template.name else [],
        "names": [template.name] if template.name else [],
        "createdAt": _moment(template.created),
        "updatedAt": _moment(template.updated),
        "lastSpawnedAt": None if template.last_spawned is None else _moment(template.last_spawned),
        "spawnCount": template.spawned,
        "buildCount": len(builds),
        "buildStatus": latest.status if latest else "waiting",
    }


def _build(build: Build, ground: Ground) -> BuildInfo:
    limits = _limits(build, ground)
    return BuildInfo(
        buildID=build.id,
        status=build.status,
        createdAt=_moment(build.created),
        updatedAt=_moment(build.updated),
        finishedAt=None if build.finished is None else _moment(build.finished),
        cpuCount=limits["cpuCount"],
        memoryMB=limits["memoryMB"],
        diskSizeMB=limits["diskSizeMB"],
    )


def _limits(build: Build | None, ground: Ground) -> dict[str, int]:
    limits = ground.limits(build.recipe.resources) if build else ground.defaults
    cores = limits.cpu or os.cpu_count() or 1
    return {"cpuCount": max(round(cores), 1), "memoryMB": (limits.memory or 0) >> 20, "diskSizeMB": (limits.storage or 0) >> 20}


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
