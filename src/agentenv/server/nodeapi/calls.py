"""What a handle has the server do to its sandbox: the calls of the node's control socket, through the fleet where it has to know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from agentenv.egress.policy import EgressPolicy
from agentenv.errors import AgentEnvError, InvalidState, NotFound
from agentenv.isolation.contract import Resources
from agentenv.node import NodeSandbox
from agentenv.node.control import Child, describe
from agentenv.node.snapshots import Snapshot
from agentenv.server.access import Tenant
from agentenv.server.catalogue import Template
from agentenv.server.fleet import NetworkRules
from agentenv.server.services import Services

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """Whose sandbox a call is about."""

    services: Services
    tenant: Tenant
    id: str

    def machine(self) -> NodeSandbox:
        """Its machine. Raises `NotFound`, `InvalidState` while it has none."""
        self.services.fleet.owned(self.tenant, self.id)
        machine = self.services.fleet.machine(self.id)
        if machine is None:
            raise InvalidState(f"sandbox {self.id} is paused.", remedy="Call `resume()` first.")
        return machine

    def lifetime(self) -> float | None:
        """The seconds that it was made for: as many as it has after a pause, and its forks have. Raises `NotFound`."""
        return self.services.fleet.owned(self.tenant, self.id).timeout


async def _pause(target: Target, _: Arguments) -> None:
    await target.services.fleet.pause(target.tenant, target.id)


async def _resume(target: Target, _: Arguments) -> None:
    await target.services.fleet.resume(target.tenant, target.id, target.lifetime())


async def _resize(target: Target, arguments: Arguments) -> None:
    await target.services.fleet.resize(target.tenant, target.id, msgspec.convert(arguments["resources"], Resources))


async def _set_lifetime(target: Target, arguments: Arguments) -> None:
    target.services.fleet.set_timeout(target.tenant, target.id, msgspec.convert(arguments["seconds"], float | None))


async def _snapshot(target: Target, arguments: Arguments) -> Snapshot:
    kept = await target.services.fleet.snapshot(target.tenant, target.id, msgspec.convert(arguments.get("name"), str | None))
    return await snapshot_of(target.services, kept.template)


async def _rollback(target: Target, arguments: Arguments) -> None:
    reference = msgspec.convert(arguments["snapshot"], str)
    await target.services.fleet.rollback(target.tenant, target.id, reference, memory=_memory(arguments))


async def _set_network(target: Target, arguments: Arguments) -> None:
    policy = EgressPolicy.from_dict(msgspec.convert(arguments["policy"], dict[str, Any]))
    await target.services.fleet.set_network(target.tenant, target.id, rules_of(policy))


def _memory(arguments: Arguments) -> bool | None:
    return msgspec.convert(arguments.get("memory"), bool | None)


async def _fork(target: Target, arguments: Arguments) -> list[Child]:
    born = await target.services.fleet.fork(target.tenant, target.id, msgspec.convert(arguments["count"], int), target.lifetime())
    return [Child(fault=describe(one)) if isinstance(one, AgentEnvError) else Child(id=one.id) for one in born]


CALLS: Mapping[str, Callable[[Target, Arguments], Awaitable[Any]]] = {
    "pause": _pause,
    "resume": _resume,
    "resize": _resize,
    "set_lifetime": _set_lifetime,
    "snapshot": _snapshot,
    "rollback": _rollback,
    "fork": _fork,
    "set_network": _set_network,
    "network_log": lambda target, _: target.machine().network_log(),
    "usage": lambda target, _: target.machine().usage(),
    "oom_kills": lambda target, _: target.machine().machine.oom_kills(),
    "process_limit_hits": lambda target, _: target.machine().machine.process_limit_hits(),
    "storage_kills": lambda target, _: target.machine().storage_kills(),
}


def rules_of(policy: EgressPolicy) -> NetworkRules:
    """A policy as the fleet has it, which knows what tenants may not open."""
    return NetworkRules(
        internet=policy.internet, allow_out=policy.allow, deny_out=policy.deny, upload=policy.upload, download=policy.download
    )


async def snapshot_of(services: Services, template: Template) -> Snapshot:
    """A snapshot of the server as a handle knows snapshots: with the server's id and name. Raises `NotFound`."""
    build = services.catalogue.choose(template.tenant, template.id).build
    found = next((one for one in await services.fleet.node.snapshots() if one.id == build.snapshot), None)
    if found is None:
        raise NotFound(f"snapshot {template.name or template.id!r} is gone.")
    return msgspec.structs.replace(found, id=template.id, name=template.name, parent=None, metadata={})
