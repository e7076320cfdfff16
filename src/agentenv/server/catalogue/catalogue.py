"""All templates and snapshots of the server: found by id or name, changed in the database first and then in this process's memory."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import delete, select, update

from agentenv.errors import ConfigError, InvalidState, NotFound
from agentenv.naming import near
from agentenv.server.catalogue.records import DEFAULT_TAG, Build, BuildStatus, Chosen, Kind, Recipe, Template
from agentenv.server.database import Database
from agentenv.server.database.tables import BuildRow, TagRow, TemplateRow

BASE = "base"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_BUILT_IN = uuid.uuid5(uuid.NAMESPACE_URL, "agentenv:templates")


class Catalogue:
    """Finds and changes templates. What belongs to another tenant and is not public does not exist for who asks."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._templates: dict[str, Template] = {}
        self._builds: dict[str, Build] = {}
        self._spawned: set[str] = set()

    @classmethod
    async def open(cls, database: Database, *, base_image: str) -> Catalogue:
        """Reads what there is, and makes sure of the built-in template `base` on `base_image`."""
        catalogue = cls(database)
        await catalogue._read()
        await catalogue._forget_half_made()
        await catalogue._ensure_base(base_image)
        return catalogue

    async def write_counts(self) -> None:
        """Writes down how often templates were used; call it now and then, and at the end."""
        async with self._database.write() as session:
            for identifier in self._spawned & self._templates.keys():
                template = self._templates[identifier]
                wanted = update(TemplateRow).where(TemplateRow.id == identifier)
                await session.execute(wanted.values(spawned=template.spawned, last_spawned=template.last_spawned))
        self._spawned.clear()

    def all(self, tenant: str, kind: Kind | None = None) -> list[Template]:
        """What belongs to a tenant, the newest first."""
        mine = [one for one in self._templates.values() if one.tenant == tenant and kind in (None, one.kind)]
        return sorted(mine, key=lambda one: (one.created, one.id), reverse=True)

    def built_in(self) -> list[Template]:
        """What comes with the server."""
        return [one for one in self._templates.values() if one.tenant is None]

    def find(self, tenant: str | None, reference: str) -> Template:
        """What `reference` means to a tenant: an id or a name, a `:tag` left aside. To None, the server itself, every id is known.

        Raises `NotFound` with a near match.
        """
        wanted = reference.partition(":")[0]
        named = self._templates.get(wanted.lower())
        if named is not None and self._visible(named, tenant):
            return named
        owners = dict.fromkeys((tenant, None))
        for owner in owners:
            for one in self._templates.values():
                if one.tenant == owner and one.name == wanted:
                    return one
        known = [one.name for one in self._templates.values() if one.name and one.tenant in owners]
        meant = near(wanted, known)
        raise NotFound(f"there is no template {reference!r}.", remedy=f"Did you mean {meant!r}?" if meant else None)

    def owned(self, tenant: str, reference: str) -> Template:
        """The same, of those that the tenant may change. Raises `NotFound`."""
        found = self.find(tenant, reference)
        if found.tenant != tenant:
            raise NotFound(f"there is no template {reference!r} of yours.")
        return found

    def choose(self, tenant: str | None, reference: str) -> Chosen:
        """The template and the build that `NAME`, `NAME:TAG`, `ID` or `ID:TAG` means.

        Raises `NotFound`, or `InvalidState` while the template has no build that is ready.
        """
        template = self.find(tenant, reference)
        tag = reference.partition(":")[2] or DEFAULT_TAG
        build = self._builds.get(template.tags.get(tag, ""))
        if build is None and tag != DEFAULT_TAG:
            raise NotFound(f"template {template.name or template.id!r} has no tag {tag!r}.")
        if build is None or build.status != "ready":
            raise InvalidState(f"template {template.name or template.id!r} has no build that is ready.", remedy="Wait for its build.")
        return Chosen(template, build, tag)

    def around(self, build: Build) -> Chosen:
        """A build that no template has, as one of `base`."""
        return Chosen(self.find(None, BASE), build)

    def builds_of(self, template: Template) -> list[Build]:
        """A template's builds, the newest first."""
        mine = [build for build in self._builds.values() if build.template == template.id]
        return sorted(mine, key=lambda build: (build.created, build.id), reverse=True)

    def unfinished(self) -> list[Build]:
        """Builds of all templates that are neither ready nor failed."""
        return [build for build in self._builds.values() if build.status in ("waiting", "building")]

    def build_of(self, template: Template, identifier: str) -> Build:
        """One of a template's builds. Raises `NotFound`."""
        build = self._builds.get(identifier)
        if build is None or build.template != template.id:
            raise NotFound(f"there is no build {identifier!r} of this template.")
        return build

    def known_build(self, identifier: str) -> Build | None:
        """A build of whichever template; None when it is there no more."""
        return self._builds.get(identifier)

    async def create(
        self, tenant: str, *, kind: Kind = "template", name: str | None = None, source: str | None = None, public: bool = False
    ) -> Template:
        """Makes an empty template. Raises `ConfigError` for a name that will not do, `InvalidState` for one that is taken."""
        if name is not None:
            check_name(name)
        if name is not None and any(one.tenant == tenant and one.name == name for one in self._templates.values()):
            raise InvalidState(f"there is a template {name!r} already.", remedy="Choose another name.")
        now = time.time()
        template = Template(str(uuid.uuid4()), tenant, kind, name, public, source, now, now)
        self._templates[template.id] = template
        try:
            async with self._database.write() as session:
                session.add(_template_row(template))
        except BaseException:
            del self._templates[template.id]
            raise
        return template

    async def change(self, template: Template, *, public: bool | None = None) -> Template:
        """Makes a template public, or private."""
        changed = replace(self._templates[template.id], public=template.public if public is None else public, updated=time.time())
        async with self._database.write() as session:
            wanted = update(TemplateRow).where(TemplateRow.id == template.id)
            await session.execute(wanted.values(public=changed.public, updated=changed.updated))
        self._templates[template.id] = changed
        return changed

    async def add_build(
        self,
        template: Template,
        recipe: Recipe,
        *,
        image: str | None = None,
        snapshot: str | None = None,
        status: BuildStatus = "waiting",
        tags: tuple[str, ...] = (),
    ) -> Build:
        """Adds a build; one that is ready gets its `tags` at once, one that is not when it `finish`es."""
        now = time.time()
        finished = now if status == "ready" else None
        build = Build(str(uuid.uuid4()), template.id, status, image, snapshot, recipe, now, now, finished)
        async with self._database.write() as session:
            session.add(_build_row(build))
            await session.flush()
            for tag in tags if status == "ready" else ():
                await session.merge(TagRow(template=template.id, tag=tag, build=build.id, created=now))
        self._builds[build.id] = build
        if status == "ready":
            self._tagged(template.id, dict.fromkeys(tags, build.id))
        return build

    async def set_build(
        self,
        build: Build,
        status: BuildStatus,
        *,
        recipe: Recipe | None = None,
        image: str | None = None,
        snapshot: str | None = None,
        reason: str | None = None,
    ) -> Build:
        """Says how far a build has come; what is None stays as it is."""
        now = time.time()
        known = self._builds[build.id]
        changed = replace(
            known,
            status=status,
            recipe=recipe or known.recipe,
            image=image or known.image,
            snapshot=snapshot or known.snapshot,
            updated=now,
            finished=now if status in ("ready", "error") else None,
            reason=reason,
        )
        async with self._database.write() as session:
            await session.merge(_build_row(changed))
        self._builds[build.id] = changed
        return changed

    async def tag(self, template: Template, tags: Mapping[str, str]) -> Template:
        """Lets each tag mean the build of that id. Raises `ConfigError` for what is no tag, `NotFound` for a build of another template."""
        for tag, build in tags.items():
            check_tag(tag)
            self.build_of(template, build)
        async with self._database.write() as session:
            for tag, build in tags.items():
                await session.merge(TagRow(template=template.id, tag=tag, build=build, created=time.time()))
        return self._tagged(template.id, tags)

    async def untag(self, template: Template, tags: tuple[str, ...]) -> Template:
        """Removes tags. Raises `NotFound` for one that there is not."""
        missing = [tag for tag in tags if tag not in template.tags]
        if missing:
            raise NotFound(f"the template has no tag {missing[0]!r}.")
        async with self._database.write() as session:
            await session.execute(delete(TagRow).where(TagRow.template == template.id, TagRow.tag.in_(tags)))
        left = {tag: build for tag, build in self._templates[template.id].tags.items() if tag not in tags}
        self._templates[template.id] = replace(self._templates[template.id], tags=left, updated=time.time())
        return self._templates[template.id]

    async def delete(self, template: Template) -> list[str]:
        """Removes a template; returns the node's snapshots that were its builds' and are nobody's any more."""
        mine = self.builds_of(template)
        async with self._database.write() as session:
            await session.execute(delete(TemplateRow).where(TemplateRow.id == template.id))
        self._templates.pop(template.id, None)
        for build in mine:
            self._builds.pop(build.id, None)
        still = {build.snapshot for build in self._builds.values()}
        return [build.snapshot for build in mine if build.snapshot is not None and build.snapshot not in still]

    def snapshots_needed(self) -> frozenset[str]:
        """The node's snapshots that some build starts from."""
        return frozenset(build.snapshot for build in self._builds.values() if build.snapshot is not None)

    def spawned(self, template: str) -> None:
        """Counts a sandbox that was made from a template."""
        found = self._templates.get(template)
        if found is not None:
            self._templates[template] = replace(found, spawned=found.spawned + 1, last_spawned=time.time())
            self._spawned.add(template)

    def _visible(self, template: Template, tenant: str | None) -> bool:
        return tenant is None or template.public or template.tenant in (tenant, None)

    def _tagged(self, identifier: str, tags: Mapping[str, str]) -> Template:
        template = self._templates[identifier]
        self._templates[identifier] = replace(template, tags={**template.tags, **tags}, updated=time.time())
        return self._templates[identifier]

    async def _read(self) -> None:
        async with self._database.read() as session:
            tags: dict[str, dict[str, str]] = {}
            for tag in await session.scalars(select(TagRow)):
                tags.setdefault(tag.template, {})[tag.tag] = tag.build
            for row in await session.scalars(select(TemplateRow)):
                self._templates[row.id] = _template(row, tags.get(row.id, {}))
            for build in await session.scalars(select(BuildRow)):
                self._builds[build.id] = _build(build)

    async def _forget_half_made(self) -> None:
        """Removes snapshots without a build: a crash came between the two."""
        built = {build.template for build in self._builds.values()}
        for template in [one for one in self._templates.values() if one.kind == "snapshot" and one.id not in built]:
            await self.delete(template)

    async def _ensure_base(self, image: str) -> None:
        now = time.time()
        template = str(uuid.uuid5(_BUILT_IN, BASE))
        # Another image is another build, so that it is seen which one a running sandbox has.
        build = Build(str(uuid.uuid5(_BUILT_IN, f"{BASE} {image}")), template, "ready", image, None, Recipe(), now, now, now)
        if template in self._templates and self._templates[template].tags.get(DEFAULT_TAG) == build.id:
            return
        fresh = self._templates.get(template) or Template(template, None, "template", BASE, True, None, now, now)
        async with self._database.write() as session:
            await session.merge(_template_row(fresh))
            await session.flush()
            await session.merge(_build_row(build))
            await session.flush()
            await session.merge(TagRow(template=template, tag=DEFAULT_TAG, build=build.id, created=now))
        self._templates[template] = replace(fresh, tags={**fresh.tags, DEFAULT_TAG: build.id})
        self._builds[build.id] = build


def loose(recipe: Recipe, *, image: str | None = None, snapshot: str | None = None) -> Build:
    """A build that belongs to no template: from an image or a snapshot of the node."""
    now = time.time()
    identifier = str(uuid.uuid5(_BUILT_IN, f"image {image} snapshot {snapshot}"))
    return Build(identifier, str(uuid.uuid5(_BUILT_IN, BASE)), "ready", image, snapshot, recipe, now, now, now)


def check_name(name: str) -> None:
    """Raises `ConfigError` when a template cannot be called so."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a template", remedy="Use 1 to 128 of a-z, 0-9, '.', '_' and '-', not '.' or '-' first.")
    try:
        uuid.UUID(name)
    except ValueError:
        return
    raise ConfigError(f"{name!r} looks like an id", remedy="Choose another name.")


def check_tag(tag: str) -> None:
    """Raises `ConfigError` for what is no tag."""
    if not TAG.fullmatch(tag):
        raise ConfigError(f"{tag!r} is no tag", remedy="Use 1 to 128 letters, digits, '.', '_' and '-', a letter or digit first.")


def _template(row: TemplateRow, tags: Mapping[str, str]) -> Template:
    kind: Kind = "snapshot" if row.kind == "snapshot" else "template"
    return Template(
        row.id, row.tenant, kind, row.name, row.public, row.source, row.created, row.updated, row.spawned, row.last_spawned, tags
    )


def _template_row(template: Template) -> TemplateRow:
    return TemplateRow(
        id=template.id,
        tenant=template.tenant,
        kind=template.kind,
        name=template.name,
        public=template.public,
        source=template.source,
        created=template.created,
        updated=template.updated,
        spawned=template.spawned,
        last_spawned=template.last_spawned,
    )


def _build(row: BuildRow) -> Build:
    status: BuildStatus = row.status if row.status in ("waiting", "building", "ready") else "error"  # type: ignore[assignment]
    return Build(
        row.id,
        row.template,
        status,
        row.image,
        row.snapshot,
        Recipe.from_json(row.facts),
        row.created,
        row.updated,
        row.finished,
        row.reason,
    )


def _build_row(build: Build) -> BuildRow:
    return BuildRow(
        id=build.id,
        template=build.template,
        status=build.status,
        image=build.image,
        snapshot=build.snapshot,
        facts=build.recipe.to_json(),
        created=build.created,
        updated=build.updated,
        finished=build.finished,
        reason=build.reason,
    )
