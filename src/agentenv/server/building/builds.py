"""Runs the builds that clients start: a few at a time, each told about in the logbook under its own id, and ended with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentenv.errors import AgentEnvError, BuildFailed, ConfigError, InvalidState
from agentenv.images.oci import Credentials, Reference
from agentenv.isolation.contract import Resources
from agentenv.monitoring.logs import logger
from agentenv.node import Node
from agentenv.server.access import Tenant
from agentenv.server.building.bases import Bases
from agentenv.server.building.uploads import Uploads
from agentenv.server.catalogue import Build, Catalogue, Recipe, Template
from agentenv.server.fleet.ground import Ground
from agentenv.server.fleet.logbook import Logbook
from agentenv.templates import BuildLine, Built, Options, Wanted, build_plan
from agentenv.templates.build import Base
from agentenv.templates.dockerfile import parse
from agentenv.templates.e2b import base_of, check_hash, file_hashes, plan_of, registry_image, startup_of
from agentenv.templates.material import Material, unpacked
from agentenv.templates.plan import Plan
from agentenv.templates.stages import needed_stages, target_stage

AT_ONCE = 2
"""Builds that run at the same time; the others wait."""

_log = logger(__name__)


class TemplateBuilds:
    """The builds of one server."""

    def __init__(self, node: Node, ground: Ground, catalogue: Catalogue, logbook: Logbook, uploads: Uploads) -> None:
        self._node = node
        self._ground = ground
        self._catalogue = catalogue
        self._logbook = logbook
        self.uploads = uploads
        self._tags: dict[str, tuple[str, ...]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._bases = Bases(catalogue, ground)
        self._closing = False

    @classmethod
    async def open(cls, node: Node, ground: Ground, catalogue: Catalogue, logbook: Logbook, directory: Path) -> TemplateBuilds:
        """Says of builds that a server before this one did not finish that they failed."""
        builds = cls(node, ground, catalogue, logbook, Uploads(directory / "uploads"))
        await asyncio.to_thread(builds.uploads.tidy)
        for build in catalogue.unfinished():
            await builds._fail(build, "The server ended before the build was done.")
        return builds

    async def close(self) -> None:
        """Ends the builds that run; idempotent."""
        self._closing = True
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def request(self, template: Template, resources: Resources, tags: tuple[str, ...]) -> Build:
        """A build that waits for its steps; when it is done, `tags` mean it."""
        build = await self._catalogue.add_build(template, Recipe(resources))
        self._tags[build.id] = tags
        return build

    async def start(self, tenant: Tenant, template: Template, build: Build, body: Mapping[str, Any]) -> None:
        """Begins a build that waits.

        Raises `InvalidState` for one that was begun before, `ConfigError` for steps that make no sense, files that were not uploaded and
        registries that tenants may not name, `NotFound` for a base template.
        """
        if build.status != "waiting" or build.id in self._running or self._closing:
            raise InvalidState(f"build {build.id} was started before.", remedy="Request another build.")
        options = Options(
            isolation=self._ground.backend,
            network=self._ground.internet,
            cache=not body.get("force"),
            resources=self._ground.limits(build.recipe.resources, Resources(pids=None)),
            bases=lambda name: self._bases.find(tenant, name),
            logins=_logins(body),
        )
        order = self._of_dockerfile(tenant, body, options) if body.get("dockerfile") else self._of_steps(tenant, body, options)
        wanted = Wanted(startup_of(body), build.recipe.resources)
        await self._catalogue.set_build(build, "building")
        task = asyncio.create_task(self._build(template, build, order, wanted))
        self._running[build.id] = task
        task.add_done_callback(lambda _: self._running.pop(build.id, None))

    async def cancel(self, build: Build) -> None:
        """Ends a build that runs; nothing happens where it does not."""
        if (task := self._running.get(build.id)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _of_steps(self, tenant: Tenant, body: Mapping[str, Any], options: Options) -> _Order:
        base, is_template = base_of(body)
        begun = is_template and isinstance(self._bases.find(tenant, base), Base)
        plan = plan_of(body, base, on_template=begun)
        return _Order(plan, options, archives={name: self._uploaded(tenant, name) for name in file_hashes(body)})

    def _of_dockerfile(self, tenant: Tenant, body: Mapping[str, Any], options: Options) -> _Order:
        plan = parse(str(body["dockerfile"]))
        target = target_stage(plan, body.get("target"))
        needed_stages(plan, target, {})
        options = replace(options, args=body.get("args") or {}, target=target.name)
        context = body.get("context")
        return _Order(plan, options, context=self._uploaded(tenant, check_hash(context)) if context else None)

    def _uploaded(self, tenant: Tenant, name: str) -> Path:
        path = self.uploads.find(tenant.id, name)
        if path is None:
            raise ConfigError(f"the files {name} were not uploaded", remedy="Upload them to the link of /templates/{id}/files/{hash}.")
        return path

    async def _build(self, template: Template, build: Build, order: _Order, wanted: Wanted) -> None:
        try:
            with ExitStack() as held:
                async with self._turns:
                    material = await asyncio.to_thread(order.material, held, self._node.scratch)
                    log = _Teller(self._logbook, build.id)
                    built = await build_plan(self._node, order.plan, material, order.options, wanted, log)
            await self._finish(template, build, built)
        except AgentEnvError as error:
            step = error.step if isinstance(error, BuildFailed) else ""
            await self._fail(build, error.message, step)
        except asyncio.CancelledError:
            await self._fail(build, "The build was cancelled.")
            raise
        except OSError as error:
            _log.warning("server.build_failed", build=build.id, error=repr(error))
            await self._fail(build, f"The build failed: {error}.")

    async def _finish(self, template: Template, build: Build, built: Built) -> None:
        state, startup = built.position.state, built.startup
        # Where the snapshot holds the started process, there is nothing left to start.
        command, ready = (startup.command, startup.ready) if built.warm is None else (None, None)
        recipe = Recipe(build.recipe.resources, dict(state.env), state.user, state.cwd, command, ready)
        done = await self._catalogue.set_build(build, "ready", recipe=recipe, snapshot=built.warm or built.snapshot)
        tags = self._tags.pop(build.id, ())
        await self._catalogue.tag(template, dict.fromkeys(tags, done.id))

    async def _fail(self, build: Build, reason: str, step: str = "") -> None:
        self._tags.pop(build.id, None)
        self._logbook.write(build.id, reason, level="error", step=step)
        await self._catalogue.set_build(build, "error", reason=reason)


def _logins(body: Mapping[str, Any]) -> Mapping[str, Credentials]:
    """The login that came with a build, for the registry of its image and no other."""
    login, image = body.get("login"), body.get("fromImage")
    registry = Reference.parse(registry_image(image)) if login and image else None
    return {} if login is None or registry is None else {registry.registry: login}


@dataclass(frozen=True, slots=True)
class _Order:
    """One build: its plan, how it is built, and what it copies from."""

    plan: Plan
    options: Options
    archives: Mapping[str, Path] = field(default_factory=dict)
    context: Path | None = None

    def material(self, held: ExitStack, place: Path) -> Material:
        """The files, unpacked below `place` until `held` is closed where they are one archive."""
        if self.context is None:
            return Material(archives=self.archives)
        return Material.of_directory(held.enter_context(unpacked(self.context, place)))


class _Teller:
    """Writes what a build says into the logbook."""

    def __init__(self, logbook: Logbook, build: str) -> None:
        self._logbook = logbook
        self._build = build

    def __call__(self, line: BuildLine) -> None:
        self._logbook.write(self._build, line.message, level=line.level, step=line.step)
