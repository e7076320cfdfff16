"""The tree around a sandbox: the snapshots that were taken of it and of its relatives, and who was forked from whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from agentenv.node.snapshots import Snapshot
from agentenv.server.access import Tenant
from agentenv.server.catalogue import Catalogue, Template
from agentenv.server.fleet import SandboxView
from agentenv.server.services import Services


@dataclass(slots=True)
class Branch:
    """A snapshot or a sandbox, with what came of it. `id` is that of the template or sandbox."""

    kind: Literal["snapshot", "sandbox"]
    id: str
    label: str
    created: float
    memory: bool = False
    state: str = ""
    current: bool = False
    children: list[Branch] = field(default_factory=list)


async def lineage(services: Services, tenant: Tenant, sandbox: SandboxView) -> list[Branch]:
    """The trees that this sandbox and its snapshots belong to, of a tenant's own things only."""
    snapshots = await services.fleet.node.snapshots()
    family = _family(services.fleet.all(tenant), sandbox)
    named = [one for one in services.catalogue.all(tenant.id, "snapshot") if one.source in family]
    return arrange(family, _of_node(services.catalogue, named), {one.id: one for one in snapshots}, named, sandbox.id)


def arrange(
    family: Mapping[str, SandboxView], kept: Mapping[str, str], node: Mapping[str, Snapshot], named: Iterable[Template], current: str
) -> list[Branch]:
    """Puts them into trees: a snapshot under the nearest one before it, a sandbox under the one that it was forked from.

    `kept`: for each template its snapshot of the node; `node`: those snapshots by id, with their parents.
    """
    branches = {
        view.id: Branch("sandbox", view.id, view.alias or "sandbox", view.started, state=view.state.value, current=view.id == current)
        for view in family.values()
    }
    parents: dict[str, str | None] = {view.id: view.parent for view in family.values()}
    owners = {snapshot: template for template, snapshot in kept.items()}
    for template in named:
        own = node.get(kept.get(template.id, ""))
        if own is None:
            continue
        branches[template.id] = Branch("snapshot", template.id, template.name or template.id[:8], template.created, memory=own.memory)
        parents[template.id] = _nearest(own, node, owners) or template.source
    roots: list[Branch] = []
    for identifier, branch in sorted(branches.items(), key=lambda pair: pair[1].created):
        parent = branches.get(parents[identifier] or "")
        (roots if parent is None else parent.children).append(branch)
    return roots


def _nearest(snapshot: Snapshot, node: Mapping[str, Snapshot], owners: Mapping[str, str]) -> str | None:
    """The template of the nearest snapshot before this one that has one."""
    before = snapshot.parent
    while before is not None and (found := node.get(before)) is not None:
        if before in owners:
            return owners[before]
        before = found.parent
    return None


def _family(views: list[SandboxView], sandbox: SandboxView) -> dict[str, SandboxView]:
    """The sandbox with its living ancestors, and all that came of them."""
    known = {view.id: view for view in views}
    known[sandbox.id] = sandbox
    root = sandbox
    while root.parent in known:
        root = known[root.parent]
    found = {root.id: root}
    for view in sorted(known.values(), key=lambda view: view.started):
        if view.parent in found:
            found[view.id] = view
    return found | {sandbox.id: sandbox}


def _of_node(catalogue: Catalogue, templates: Iterable[Template]) -> dict[str, str]:
    found = {}
    for template in templates:
        builds = [build.snapshot for build in catalogue.builds_of(template) if build.snapshot]
        if builds:
            found[template.id] = builds[0]
    return found
