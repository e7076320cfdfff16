"""From a plan to a template with a name: builds it, tries its start command, and writes down what its sandboxes get."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from agentenv.errors import AgentEnvError, BuildFailed, ConfigError
from agentenv.isolation.contract import Resources
from agentenv.node import Node
from agentenv.node.templates import Startup, TemplateRecord, split_name
from agentenv.sandbox.startup import fitting, run_startup
from agentenv.templates.build import Builder, Options, Position
from agentenv.templates.cache import MARK
from agentenv.templates.dockerfile import read
from agentenv.templates.journal import BuildLine, Log, Printed
from agentenv.templates.material import Material
from agentenv.templates.plan import Plan
from agentenv.templates.steps import key_of

FINALIZE = "finalize"
"""The name of the step in which the start command is tried."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a template is to be besides its files: `resources` of its sandboxes, what they start."""

    startup: Startup = field(default_factory=Startup)
    resources: Resources = field(default_factory=lambda: Resources(pids=None))


@dataclass(frozen=True, slots=True)
class Built:
    """A build that is done: `snapshot` is what sandboxes start from; `position` has the rest.

    `warm` holds the process that `startup` has started, for the backend `backend`; None where that cannot write memory down.
    """

    snapshot: str
    position: Position
    startup: Startup
    warm: str | None = None
    backend: str | None = None


async def build_plan(node: Node, plan: Plan, material: Material, options: Options, wanted: Wanted, log: Log) -> Built:
    """Builds a plan and tries its start command, without giving it a name.

    Raises `BuildFailed` for a step (the start command is the step "finalize"), `ConfigError`, `NotFound`, `InfrastructureError`.
    """
    builder = Builder(node, plan, material, options, log)
    position = await builder.build()
    snapshot = await _with_defaults(node, builder, position)
    startup = replace_startup(wanted.startup, position)
    built = Built(snapshot, position, startup)
    if startup.command is not None:
        log(BuildLine(f"[{FINALIZE}] {startup.command}", step=FINALIZE))
        built = await _try(node, builder, built, log)
    log(BuildLine("Finished", step=FINALIZE))
    return built


async def build_template(
    directory: Path,
    name: str,
    *,
    node: Node,
    dockerfile: Path | None = None,
    options: Options | None = None,
    wanted: Wanted | None = None,
    log: Log = lambda line: None,
) -> TemplateRecord:
    """Builds the Dockerfile of `directory` (or another one) and lets the template `NAME[:TAG]` mean the result from then on.

    Raises `ConfigError` with the line of what is wrong in the file, `BuildFailed` for a step, and what `build_plan` raises.
    """
    label, tag = split_name(name)
    file = dockerfile or directory / "Dockerfile"
    plan, material = await asyncio.to_thread(read, file), await asyncio.to_thread(Material.of_directory, directory, file)
    options, wanted = options or Options(), wanted or Wanted()
    built = await build_plan(node, plan, material, options, wanted, log)
    record = record_of(label, tag, built, wanted.resources, options, _source(directory, file, options))
    await asyncio.to_thread(node.templates.put, record)
    return record


async def rebuild_template(node: Node, record: TemplateRecord, *, cache: bool = True, log: Log = lambda line: None) -> TemplateRecord:
    """Builds a template from where it was built the last time, on what its base means now.

    Raises `ConfigError` for one that was not built from a Dockerfile on this machine, and what `build_template` raises.
    """
    source = record.source
    if not source.get("dockerfile"):
        raise ConfigError(f"{record.label} was not built from a Dockerfile on this machine", remedy="Build it where it came from.")
    args = {key.removeprefix("arg:"): value for key, value in source.items() if key.startswith("arg:")}
    options = Options(isolation=record.isolation or "auto", args=args, target=source.get("target") or None, cache=cache)
    wanted = Wanted(record.startup, record.resources)
    directory, dockerfile = Path(source["directory"]), Path(source["dockerfile"])
    return await build_template(directory, record.label, node=node, dockerfile=dockerfile, options=options, wanted=wanted, log=log)


def record_of(name: str, tag: str, built: Built, resources: Resources, options: Options, source: Mapping[str, str]) -> TemplateRecord:
    """What is written down about a template that was built."""
    state = built.position.state
    return TemplateRecord(
        name=name,
        tag=tag,
        snapshot=built.snapshot,
        created=time.time(),
        base=built.position.base,
        env=dict(state.env),
        user=state.user,
        cwd=state.cwd,
        startup=built.startup,
        resources=resources,
        isolation=built.backend or (None if options.isolation == "auto" else options.isolation),
        warm=built.warm,
        facts=dict(state.facts),
        source=dict(source),
    )


def _source(directory: Path, file: Path, options: Options) -> dict[str, str]:
    """All that is needed to build it again."""
    arguments = {f"arg:{key}": value for key, value in options.args.items()}
    return {"directory": str(directory.absolute()), "dockerfile": str(file.absolute()), "target": options.target or "", **arguments}


async def delete_template(node: Node, reference: str) -> TemplateRecord:
    """Forgets a template; results of steps that nothing else needs stay until they are pruned. Raises `NotFound`."""
    return await asyncio.to_thread(node.templates.delete, reference)


def replace_startup(startup: Startup, position: Position) -> Startup:
    """The startup as the build's last user, in its last directory, where nothing else was said."""
    return msgspec.structs.replace(startup, user=startup.user or position.state.user, cwd=startup.cwd or position.state.cwd)


async def _with_defaults(node: Node, builder: Builder, position: Position) -> str:
    """A snapshot of the build's files that gives its sandboxes the build's environment, user and directory."""
    position = await builder.settled(position)
    assert position.snapshot is not None
    defaults = position.state.defaults
    key = key_of(position.key, "defaults", str(sorted(defaults.env.items())), defaults.user, defaults.cwd)
    known = builder.cached(key)
    return known or (await node.derive_snapshot(position.snapshot, defaults, {MARK: key})).id


async def _try(node: Node, builder: Builder, built: Built, log: Log) -> Built:
    """Starts what the template's sandboxes start: one whose start command fails is no template. Keeps the started process if it can."""
    startup = built.startup
    position = replace(built.position, snapshot=built.snapshot)
    key = key_of("warm", built.snapshot, *map(str, (startup.command, startup.ready, startup.user, startup.cwd)))
    known = builder.cached(key)
    if known is not None:
        found = next(one for one in await node.snapshots() if one.id == known)
        return replace(built, warm=found.id, backend=found.backend)
    printed = Printed(log, FINALIZE)
    try:
        async with await builder.sandbox(position, network=True, metadata={MARK: key}) as sandbox:
            await run_startup(sandbox.commands, fitting(startup, users=sandbox.capabilities.users), printed.piece)
            if not sandbox.capabilities.memory_snapshot:
                return built
            warm = await sandbox.snapshot(memory=True)
            log(BuildLine("The started process is kept.", step=FINALIZE))
            return replace(built, warm=warm.id, backend=warm.backend)
    except AgentEnvError as error:
        raise BuildFailed(error.message, step=startup.command or FINALIZE, output=printed.end(), remedy=error.remedy) from error
    finally:
        printed.end()
