"""Templates: found by id and name, built, tagged, removed, and never another tenant's."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentenv.errors import ConfigError, InvalidState, NotFound
from agentenv.isolation.contract import Resources
from agentenv.server.access import Access, Quotas
from agentenv.server.catalogue import Catalogue, Recipe, check_name
from agentenv.server.database import Database

RECIPE = Recipe(Resources(cpu=2, memory=1 << 30, pids=None), {"A": "b"}, "root", "/srv", "serve", "curl localhost")


@pytest.fixture
async def tenants(database: Database, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    access = await Access.open(database, tmp_path)
    yield access.tenant("default").id, (await access.create_tenant("other", Quotas())).id
    await access.close()


@pytest.fixture
async def catalogue(database: Database, tenants: tuple[str, str]) -> Catalogue:
    return await Catalogue.open(database, base_image="host")


async def test_base_is_there_for_everybody_from_the_start(catalogue: Catalogue, tenants: tuple[str, str]) -> None:
    chosen = [catalogue.choose(tenant, "base") for tenant in tenants]
    assert chosen[0] == chosen[1]
    assert (chosen[0].build.image, chosen[0].build.recipe.user) == ("host", "user")


async def test_another_image_is_another_build_of_base(catalogue: Catalogue, database: Database) -> None:
    before = catalogue.choose(None, "base")
    after = (await Catalogue.open(database, base_image="debian")).choose(None, "base")
    assert after.template.id == before.template.id
    assert (after.build.image, before.build.image) == ("debian", "host")
    assert after.build.id != before.build.id


async def test_a_template_lives_through_builds_and_tags(catalogue: Catalogue, tenants: tuple[str, str], database: Database) -> None:
    mine, _ = tenants
    template = await catalogue.create(mine, name="web")
    first = await catalogue.add_build(template, RECIPE)
    with pytest.raises(InvalidState, match="no build that is ready"):
        catalogue.choose(mine, "web")
    await catalogue.set_build(first, "ready", snapshot="sn1")
    await catalogue.tag(template, {"default": first.id, "v1": first.id})
    second = await catalogue.add_build(template, RECIPE, snapshot="sn2", status="ready", tags=("default",))
    again = await Catalogue.open(database, base_image="host")
    for known in (catalogue, again):
        assert known.choose(mine, "web").build.id == second.id
        assert known.choose(mine, f"{template.id}:v1").build == known.build_of(known.find(mine, "web"), first.id)
        assert known.choose(mine, "web").build.recipe == RECIPE
    await catalogue.untag(catalogue.find(mine, "web"), ("v1",))
    with pytest.raises(NotFound, match="tag 'v1'"):
        catalogue.choose(mine, "web:v1")
    assert sorted(await catalogue.delete(catalogue.find(mine, "web"))) == ["sn1", "sn2"]
    with pytest.raises(NotFound, match="web"):
        catalogue.choose(mine, "web")
    assert (await Catalogue.open(database, base_image="host")).all(mine) == []


async def test_another_tenants_template_does_not_exist_until_it_is_public(catalogue: Catalogue, tenants: tuple[str, str]) -> None:
    mine, other = tenants
    template = await catalogue.create(mine, name="web")
    await catalogue.add_build(template, RECIPE, image="host", status="ready", tags=("default",))
    for reference in ("web", template.id):
        with pytest.raises(NotFound):
            catalogue.find(other, reference)
    await catalogue.change(template, public=True)
    assert catalogue.choose(other, template.id).template.name == "web"
    with pytest.raises(NotFound, match="of yours"):
        catalogue.owned(other, template.id)
    assert (await catalogue.create(other, name="web")).id != template.id


async def test_names_are_taken_once_and_checked(catalogue: Catalogue, tenants: tuple[str, str]) -> None:
    await catalogue.create(tenants[0], name="web")
    with pytest.raises(InvalidState, match="already"):
        await catalogue.create(tenants[0], name="web")
    for name in ("", "UPPER", "a b", "-x", "a:b", str(uuid.uuid4()), "x" * 129):
        with pytest.raises(ConfigError):
            check_name(name)


async def test_a_near_miss_is_named(catalogue: Catalogue, tenants: tuple[str, str]) -> None:
    with pytest.raises(NotFound) as caught:
        catalogue.choose(tenants[0], "bsae")
    assert "Did you mean 'base'?" in str(caught.value)


async def test_uses_are_counted_and_kept(catalogue: Catalogue, tenants: tuple[str, str], database: Database) -> None:
    template = await catalogue.create(tenants[0], name="web")
    catalogue.spawned(template.id)
    catalogue.spawned(template.id)
    await catalogue.write_counts()
    again = (await Catalogue.open(database, base_image="host")).find(tenants[0], "web")
    assert again.spawned == 2
    assert again.last_spawned is not None
