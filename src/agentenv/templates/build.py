"""Builds a template: every stage that is needed, step by step, each in a sandbox of its own, independent stages side by side.

What a step left is a snapshot, found again by a digest of all that it depends on: what was there before, what was to be done, the files
that were copied. A build that fails or is cancelled leaves those of the steps that were done, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentenv.errors import BuildFailed, CapabilityError, ConfigError, NotFound, SandboxFileError
from agentenv.images.fingerprint import fingerprint
from agentenv.images.oci import Credentials, Reference
from agentenv.isolation.contract import Resources
from agentenv.node import NetworkRequest, Node, SandboxRequest
from agentenv.node.templates import SCHEME
from agentenv.sandbox import AsyncSandbox
from agentenv.templates.cache import MARK, StepCache
from agentenv.templates.dockerfile.ignore import Ignored
from agentenv.templates.dockerfile.words import BadWord, expand
from agentenv.templates.files import fetch
from agentenv.templates.journal import BuildLine, Log
from agentenv.templates.material import Material
from agentenv.templates.plan import Copy, DeclareArg, Note, Plan, Run, SetEnv, SetShell, SetUser, Stage, Step, Workdir
from agentenv.templates.selection import fixed_prefix
from agentenv.templates.stages import image_reference, needed_stages, stage_called, target_stage
from agentenv.templates.state import SHELL, State
from agentenv.templates.steps import Prepared, Workshop, is_remote, key_of, prepare_copy, prepare_run, prepare_user, prepare_workdir


@dataclass(frozen=True, slots=True)
class Base:
    """A snapshot that a stage begins with, with its environment, user and directory; `name` is for people."""

    snapshot: str
    state: State
    name: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """How to build: `args` are the values of ARGs, `target` the last stage, without `cache` every step is done anew.

    `network`: whether commands reach the outside world. `resources` are those of the sandboxes that steps run in. `bases` is asked first
    what the name of a base means; it may refuse one with `ConfigError`, and None is "what it always means". `logins` has, by registry, who
    to ask it as; they are used for this build alone and written nowhere.
    """

    isolation: str = "auto"
    args: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None
    cache: bool = True
    network: bool = True
    resources: Resources = field(default_factory=Resources)
    bases: Callable[[str], Base | str | None] = lambda name: None
    logins: Mapping[str, Credentials] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a stage has come: `snapshot` (None: none yet) over `image`, by `key` all that it depends on; `base` began it."""

    key: str
    image: str
    snapshot: str | None
    state: State
    base: str


def _silent(line: BuildLine) -> None:
    """Nobody listens."""


class Builder:
    """One build of `plan` with the files of `material`."""

    def __init__(self, node: Node, plan: Plan, material: Material, options: Options, log: Log = _silent) -> None:
        self._node = node
        self._plan = plan
        self._material = material
        self._options = options
        self._log = log
        self._cache = StepCache(node)
        self._stages: dict[str, asyncio.Task[Position]] = {}
        self._globals: dict[str, str] = {}
        self._network = options.network

    async def build(self) -> Position:
        """Carries all out. Raises `BuildFailed` for a step, `ConfigError` for what is wrong in the plan, `NotFound` for a base."""
        await self._cache.read()
        self._globals = self._declared()
        target = target_stage(self._plan, self._options.target)
        try:
            async with asyncio.TaskGroup() as group:
                # In order, so that whoever waits for a stage finds its task.
                for stage in needed_stages(self._plan, target, self._globals):
                    self._stages[stage.name] = group.create_task(self._stage(stage))
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        return self._stages[target.name].result()

    def _declared(self) -> dict[str, str]:
        values: dict[str, str] = {}
        for arg in self._plan.args:
            state = State(args=values).with_args(arg, self._options.args, {}, self._plan.escape)
            values = dict(state.args)
        return values

    async def _stage(self, stage: Stage) -> Position:
        position = await self._base(stage)
        for number, step in enumerate(stage.steps, 1):
            self._log(BuildLine(f"[{stage.name} {number}/{len(stage.steps)}] {step.text}", step=step.text))
            try:
                position = await self._step(position, step, fresh=stage.fresh_from is not None and number > stage.fresh_from)
            except (ConfigError, CapabilityError, NotFound, SandboxFileError) as error:
                raise BuildFailed(
                    error.message.rstrip("."), step=step.text, file=self._plan.file, line=step.line, remedy=error.remedy
                ) from error
        return position

    async def _base(self, stage: Stage) -> Position:
        """Where a stage begins: at the end of another, at a template, or at an image."""
        base = stage.base if stage.verbatim else self._named(stage)
        if base in self._stages and not stage.verbatim:
            found = await self._stages[base]
            return replace(found, state=replace(found.state, args={}, shell=SHELL))
        self._log(BuildLine(f"[{stage.name}] FROM {base}", step="base"))
        given = self._options.bases(base)
        if isinstance(given, Base):
            return await self._on_snapshot(given)
        reference = given or (base if stage.verbatim else image_reference(base))
        if reference.startswith(SCHEME):
            record = await asyncio.to_thread(self._node.templates.find, reference)
            return await self._on_snapshot(
                Base(record.snapshot, State(record.env, {}, record.user, record.cwd, facts=record.facts), record.base)
            )
        registry = Reference.parse(reference)
        image = await self._node.image(reference, self._options.logins.get(registry.registry) if registry else None)
        key = key_of("image", image.image, fingerprint(image), self._options.isolation)
        return Position(key, image.image, None, State.of_image(image), reference)

    async def _on_snapshot(self, base: Base) -> Position:
        found = next((one for one in await self._node.snapshots() if one.id == base.snapshot), None)
        if found is None:
            raise NotFound(f"the snapshot {base.snapshot} of {base.name or 'the base'} is gone.", remedy="Build it again.")
        return Position(key_of("template", base.snapshot), found.image, base.snapshot, base.state, base.name or found.image)

    def _named(self, stage: Stage) -> str:
        try:
            base = expand(stage.base, {**self._globals}, self._plan.escape)
        except BadWord as error:
            raise ConfigError(error.message, file=self._plan.file, line=stage.line) from error
        if not base:
            raise ConfigError(f"FROM {stage.base} is empty", file=self._plan.file, line=stage.line, remedy="Give its ARG a value.")
        before = [one.name for one in self._plan.stages if one.line < stage.line]
        return base.lower() if base.lower() in before else base

    async def _step(self, position: Position, step: Step, *, fresh: bool) -> Position:
        state, escape = position.state, self._plan.escape
        match step:
            case SetEnv():
                return replace(position, state=state.with_env(step, escape))
            case DeclareArg():
                return replace(position, state=state.with_args(step, self._options.args, self._globals, escape))
            case SetShell():
                return replace(position, state=replace(state, shell=step.shell))
            case Note():
                return replace(position, state=state.with_note(step, escape))
            case SetUser():
                user = state.expand(step.user, escape, verbatim=step.verbatim)
                done = await self._done(position, step, prepare_user(user), fresh=fresh)
                return replace(done, state=replace(state, user=user))
            case Workdir():
                path = state.path(state.expand(step.path, escape, verbatim=step.verbatim)).rstrip("/") or "/"
                done = await self._done(position, step, prepare_workdir(path, state.user), fresh=fresh)
                return replace(done, state=replace(state, cwd=path))
            case Run():
                return await self._done(position, step, prepare_run(step, state, self._log, self._plan.file), fresh=fresh)
            case Copy():
                return await self._copy(position, step, fresh=fresh)
        raise AssertionError(f"nobody knows what to do with {step}")

    async def _copy(self, position: Position, step: Copy, *, fresh: bool) -> Position:
        with ExitStack() as held:
            source = await self._source(step, position.state, held)
            # Reading all files and their digests takes as long as it takes.
            prepared = await asyncio.to_thread(prepare_copy, step, position.state, self._plan.escape, source, self._shop(held))
            return await self._done(position, step, prepared, fresh=fresh)

    def _shop(self, held: ExitStack) -> Workshop:
        return Workshop(self._node.scratch, self._node.reach, held)

    async def _source(self, step: Copy, state: State, held: ExitStack) -> tuple[Path, Ignored]:
        """The directory that a step copies from: the build's, an archive's, or what another stage or image has at those paths."""
        if step.source is None:
            words = [state.expand(word, self._plan.escape, verbatim=step.verbatim) for word in step.sources]
            if all(step.add and is_remote(word) for word in words):
                return Path("/nonexistent"), Ignored()
            return await asyncio.to_thread(held.enter_context, self._material.tree(step.archive, self._node.scratch))
        stage = stage_called(self._plan, step.source)
        origin = await (self._stages[stage] if stage else self._base(Stage(f"--from={step.source}", step.source, step.line)))
        tree = self._shop(held).directory()
        async with await self.sandbox(origin, network=False) as sandbox:
            for word in step.sources:
                await fetch(sandbox, fixed_prefix(state.expand(word, self._plan.escape)), tree)
        return tree, Ignored()

    async def _done(self, position: Position, step: Step, prepared: Prepared, *, fresh: bool) -> Position:
        """The position after a step, done now or before."""
        key = key_of(position.key, prepared.key)
        known = None if fresh else self.cached(key)
        if known is not None:
            self._log(BuildLine("CACHED", step=step.text))
            return replace(position, key=key, snapshot=known)
        async with await self.sandbox(position, network=prepared.network, metadata={MARK: key}) as sandbox:
            await prepared.act(sandbox)
            snapshot = await sandbox.snapshot(memory=False)
        self._cache.add(key, snapshot.id)
        return replace(position, key=key, snapshot=snapshot.id)

    def cached(self, key: str) -> str | None:
        """The snapshot with that key from before; None where there is none, or everything is to be done anew."""
        return self._cache.find(key) if self._options.cache else None

    async def settled(self, position: Position) -> Position:
        """The same with a snapshot, also where no step made one."""
        if position.snapshot is not None:
            return position
        prepared = prepare_user(position.state.user)
        return await self._done(position, SetUser(0, "FROM", position.state.user), prepared, fresh=False)

    async def sandbox(self, position: Position, *, network: bool, metadata: Mapping[str, str] | None = None) -> AsyncSandbox:
        """A sandbox with the files of a position; the caller ends it."""
        request = SandboxRequest(
            image=position.image,
            snapshot=position.snapshot,
            isolation=self._options.isolation,
            resources=self._options.resources,
            network=NetworkRequest(enabled=network and self._network),
            metadata=dict(metadata or {}),
        )
        try:
            return AsyncSandbox(await self._node.create(request), self._node)
        except CapabilityError as error:
            if not request.network.enabled:
                raise
            self._log(BuildLine(f"Commands have no network: {error.message}", "warn"))
            self._network = False
            return AsyncSandbox(await self._node.create(replace(request, network=NetworkRequest())), self._node)


def _first(failures: BaseExceptionGroup) -> BaseException:
    """The failure that the others came of: a step's before those of who waited for it."""
    flat = list(_flat(failures))
    return next((one for one in flat if isinstance(one, BuildFailed)), flat[0])


def _flat(failures: BaseExceptionGroup) -> Iterator[BaseException]:
    for one in failures.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _flat(one)
        else:
            yield one
