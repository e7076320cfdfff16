"""The settings of a server, each with its meaning and default: from a YAML file, `AGENTENV_*` variables and flags, the later the stronger.

Every setting has a variable: `sandboxes.timeout` is `AGENTENV_SANDBOXES_TIMEOUT`. Lists and mappings are written there as YAML or JSON.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentenv.config.explain import explain, sections_of
from agentenv.config.problems import Key, Problem, invalid
from agentenv.config.source import read_file
from agentenv.units import parse_duration, parse_size

PREFIX = "AGENTENV_"

Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
Duration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]


class Section(BaseModel):
    """What all sections have in common: they do not change and take no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ResourceSettings(Section):
    """Limits of a sandbox whose template names none. What this machine cannot limit is not limited, and the log says so."""

    cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2
    """Cores; on a machine with fewer, all of them."""
    memory: Size = 1024**3
    """Memory of all its processes together."""
    storage: Size = 10 * 1024**3
    """What it may write to its files."""
    pids: Annotated[int, Field(ge=8)] = 4096
    """Processes and threads."""


class SandboxSettings(Section):
    """What holds for every sandbox."""

    isolation: str = "auto"
    """The backend by name, or `auto` for the strongest that is usable."""
    image: str | None = None
    """The image of the template `base`; left out, `host`, or `debian` on a backend of virtual machines."""
    resources: ResourceSettings = ResourceSettings()
    internet: bool = True
    """Whether a sandbox whose creator says nothing of it reaches the outside world; private addresses stay denied."""
    private_destinations: bool = False
    """Whether a sandbox's own rules may name addresses off the public internet: then a tenant can reach machines of your network."""
    longest_timeout: Duration = 24 * 3600.0
    """The longest time to live that can be asked for."""


class CapacitySettings(Section):
    """How much at once."""

    sandboxes: Annotated[int, Field(ge=1)] = 2000
    """Sandboxes that run at once, of all tenants together."""
    starting: Annotated[int, Field(ge=1)] = 8
    """Sandboxes that start at once; the others wait in the queue."""
    queue: Annotated[int, Field(ge=0)] = 1024
    """Starts that wait at most; beyond, a request is answered 429."""
    queue_timeout: Duration = 60.0
    """How long a start waits at most."""


class IdleSettings(Section):
    """What becomes of sandboxes that nobody uses. A sandbox is in use while a request to it, a command or a connection is open."""

    pause_after: Duration | None = None
    """A running sandbox that nobody has used for so long is paused."""
    remove_after: Duration | None = 30 * 24 * 3600.0
    """A sandbox that has been paused for so long is removed."""
    lease: Duration = 60.0
    """The sandboxes of a client of AgentENV's own handle end when it has not been heard of for so long."""


class QuotaSettings(Section):
    """What a new tenant may have at once. What is left out is not limited."""

    sandboxes: Annotated[int, Field(ge=0)] | None = None
    """Running sandboxes."""
    cpu: Annotated[float, Field(ge=0)] | None = None
    """Cores of its running sandboxes together."""
    memory: Size | None = None
    """Memory limits of its running sandboxes together."""
    storage: Size | None = None
    """Storage limits of its running and paused sandboxes together."""
    templates: Annotated[int, Field(ge=0)] | None = None
    """Templates and named snapshots."""


class TlsSettings(Section):
    """HTTPS, with files in PEM form."""

    certificate: Path | None = None
    """The certificate, followed by those that it is signed with."""
    key: Path | None = None
    """Its private key."""


class ShutdownSettings(Section):
    """What happens to running sandboxes when the server is asked to end (SIGTERM, SIGINT)."""

    policy: Literal["drain", "persist", "kill"] = "persist"
    """`drain`: wait for them to end, then as `persist`. `persist`: pause them so that they can be resumed later. `kill`: end them."""
    grace: Duration = 30.0
    """How long `drain` waits, and how long open requests may go on."""


class CrashSettings(Section):
    """What happens to sandboxes that ran when the server died; the next start, or whichever command clears up before it, does it."""

    policy: Literal["lifecycle", "keep", "clean"] = "lifecycle"
    """`keep`: their files are kept, and they are paused. `clean`: they are gone. `lifecycle`: as if their time had ended just then, so that
    those are kept which would have been paused."""


class HistorySettings(Section):
    """What is remembered about sandboxes."""

    interval: Duration = 5.0
    """Between two measurements of one sandbox; longer by itself where there are so many that measuring would cost too much."""
    samples: Annotated[int, Field(ge=1)] = 720
    """Measurements kept of each sandbox."""
    logs: Duration = 7 * 24 * 3600.0
    """How long log lines and ended sandboxes are kept."""


class TracingSettings(Section):
    """OpenTelemetry traces; they need the extra `otel`."""

    endpoint: str | None = None
    """The collector's OTLP/HTTP base address, such as http://127.0.0.1:4318; left out, what OTEL_EXPORTER_OTLP_ENDPOINT says."""


class ServerSettings(Section):
    """All of it."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    """The port to listen on; 0 takes a free one."""
    domain: str | None = None
    """Where `{port}-{id}.DOMAIN` leads to this server; left out, `localhost:PORT`."""
    database: str | None = None
    """`postgresql://USER:PASSWORD@HOST/NAME` or `sqlite:///PATH`; left out, SQLite in AGENTENV_HOME."""
    tls: TlsSettings = TlsSettings()
    sandboxes: SandboxSettings = SandboxSettings()
    capacity: CapacitySettings = CapacitySettings()
    pools: dict[str, Annotated[int, Field(ge=0, le=1000)]] = {}
    """How many sandboxes of which template are kept ready, such as `{base: 4}`."""
    idle: IdleSettings = IdleSettings()
    quotas: QuotaSettings = QuotaSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    crash: CrashSettings = CrashSettings()
    history: HistorySettings = HistorySettings()
    tracing: TracingSettings = TracingSettings()
    runs: Path | None = None
    """Where the training runs are that the dashboard and /runs show; left out, `runs` in the working directory, and all others that were
    started on this machine."""
    docs: bool = True
    """Whether /docs and /openapi.json are served."""

    @property
    def public_domain(self) -> str:
        """The domain under which ports of sandboxes are reached."""
        return self.domain or f"localhost:{self.port}"


def load_settings(
    file: Path | None = None, *, environment: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> ServerSettings:
    """The settings of `file`, overridden by `environment` (default: this process's), overridden by those `flags` that are not None.

    Raises `InvalidConfig` with every problem: where it was written, and what would be right.
    """
    source = read_file(file) if file else None
    data: dict[str, Any] = dict(source.data) if source else {}
    origins: dict[Key, str] = {}
    for key, value, origin in [*_from_environment(os.environ if environment is None else environment), *_from_flags(flags or {})]:
        _put(data, key, value)
        origins[key] = origin
    problems = list(source.problems) if source else []
    try:
        settings = ServerSettings.model_validate(data)
    except ValidationError as error:
        found = [_located(problem, origins, source.line(problem.key) if source else None, file) for problem in _problems(error)]
        raise invalid(*problems, *found) from None
    if problems:
        raise invalid(*problems)
    return settings


def variable(key: Key) -> str:
    """The environment variable for a setting."""
    return PREFIX + "_".join(str(part) for part in key).upper()


def setting_keys(model: type[BaseModel] = ServerSettings, above: Key = ()) -> Iterator[Key]:
    """The key of every setting that is no section."""
    for name, info in model.model_fields.items():
        section = next(sections_of(info.annotation), None)
        if section is None:
            yield (*above, name)
        else:
            yield from setting_keys(section, (*above, name))


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[Key, object, str]]:
    for key in setting_keys():
        name = variable(key)
        if name in environment:
            yield key, _plain(environment[name], name), name


def _from_flags(flags: Mapping[str, object]) -> Iterator[tuple[Key, object, str]]:
    for name, value in flags.items():
        if value is not None:
            key = tuple(name.split("."))
            yield key, value, f"--{'-'.join(key)}"


def _plain(text: str, name: str) -> object:
    """The text itself, or what it says where it is written as a list or mapping."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise invalid(Problem("is neither YAML nor JSON.", file=name, remedy='Write for example {"base": 4}.')) from error


def _put(data: dict[str, Any], key: Key, value: object) -> None:
    for part in key[:-1]:
        inner = data.get(str(part))
        data[str(part)] = data = dict(inner) if isinstance(inner, Mapping) else {}
    data[str(key[-1])] = value


def _problems(error: ValidationError) -> Iterator[Problem]:
    return explain(error, ServerSettings)


def _located(problem: Problem, origins: Mapping[Key, str], line: int | None, file: Path | None) -> Problem:
    origin = next((origins[problem.key[:depth]] for depth in range(len(problem.key), 0, -1) if problem.key[:depth] in origins), None)
    if origin:
        return Problem(problem.message, file=origin, key=problem.key, remedy=problem.remedy)
    return Problem(problem.message, file=str(file) if file else None, line=line, key=problem.key, remedy=problem.remedy)
