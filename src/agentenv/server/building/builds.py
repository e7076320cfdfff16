"""Runs the builds that clients start: a few at a time, each told about in the logbook under its own id, and ended with the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentenv.errors import AgentEnvError, BuildFailed, ConfigError, InvalidState
from agentenv.images.oci import Reference
from agentenv.images.oci.registry import is_insecure, is_local
from agentenv.isolation.contract import Resources
from agentenv.monitoring.logs import logger
from agentenv.node import Node
from agentenv.server.access import Tenant
from agentenv.server.building.uploads import Uploads
from agentenv.server.catalogue import Build, Catalogue, Recipe, Template
from agentenv.server.fleet.ground import Ground
from agentenv.server.fleet.logbook import Logbook
from agentenv.templates import BuildLine, Built, Options, Wanted, build_plan
from agentenv.templates.build import Base
from agentenv.templates.e2b import base_of, file_hashes, plan_of, startup_of
from agentenv.templates.material import Material
from agentenv.templates.state import State

AT_ONCE = 2
"""Builds that run at the same time; the others wait."""

BASE_IMAGE = "docker.io/e2bdev/base"
"""What E2B's builder begins with where nobody says otherwise; here that is the server's own template `base`."""

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
        options, plan_base, on_template = self._base(tenant, body)
        plan = plan_of(body, plan_base, on_template=on_template)
        archives = {name: self._uploaded(tenant, name) for name in file_hashes(body)}
        wanted = Wanted(startup_of(body), build.recipe.resources)
        options = replace(options, resources=self._ground.limits(build.recipe.resources, Resources(pids=None)))
        await self._catalogue.set_build(build, "building")
        material, log = Material(archives=archives), _Teller(self._logbook, build.id)
        work = self._build(template, build, lambda: build_plan(self._node, plan, material, options, wanted, log))
        self._running[build.id] = task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._running.pop(build.id, None))

    async def cancel(self, build: Build) -> None:
        """Ends a build that runs; nothing happens where it does not."""
        if (task := self._running.get(build.id)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _base(self, tenant: Tenant, body: Mapping[str, Any]) -> tuple[Options, str, bool]:
        """What a build begins with: options that know it, its name, and whether it is a template that has a user and a directory."""
        name, is_template = base_of(body)
        cached = not body.get("force")
        options = Options(isolation=self._ground.backend, network=self._ground.internet, cache=cached)
        if not is_template and name.partition(":")[0] == BASE_IMAGE:
            name, is_template = "base", True
        if not is_template:
            self._require_allowed(name)
            return options, name, False
        chosen = self._catalogue.choose(tenant.id, name)
        recipe, image = chosen.build.recipe, chosen.build.image
        if chosen.build.snapshot is None:
            return options, image or self._ground.image, False
        state = State(dict(recipe.env), {}, recipe.user, recipe.cwd or f"/home/{recipe.user}")
        base = Base(chosen.build.snapshot, state, f"template:{chosen.template.name or chosen.template.id}")
        return replace(options, bases={base.name: base}), base.name, True

    def _require_allowed(self, name: str) -> None:
        """This machine's own services are not reached through a build, but for registries that whoever runs the server has named."""
        reference = Reference.parse(name)
        if reference is not None and is_local(reference.registry) and not is_insecure(reference.registry):
            raise ConfigError(
                f"the registry {reference.registry} is not to be used here",
                remedy="Whoever runs the server can name it in AGENTENV_INSECURE_REGISTRIES.",
            )

    def _uploaded(self, tenant: Tenant, name: str) -> Path:
        path = self.uploads.find(tenant.id, name)
        if path is None:
            raise ConfigError(f"the files {name} were not uploaded", remedy="Upload them to the link of /templates/{id}/files/{hash}.")
        return path

    async def _build(self, template: Template, build: Build, work: Callable[[], Awaitable[Built]]) -> None:
        try:
            async with self._turns:
                built = await work()
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


class _Teller:
    """Writes what a build says into the logbook."""

    def __init__(self, logbook: Logbook, build: str) -> None:
        self._logbook = logbook
        self._build = build

    def __call__(self, line: BuildLine) -> None:
        self._logbook.write(self._build, line.message, level=line.level, step=line.step)
