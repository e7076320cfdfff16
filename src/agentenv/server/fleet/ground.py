"""What this machine lets a sandbox have: the backend that will be used, what it can limit, and the image of the template `base`."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, replace

from agentenv.errors import AgentEnvError, BackendUnavailable
from agentenv.images.oci import Reference
from agentenv.images.reach import Reach
from agentenv.isolation.contract import Capabilities, Probe, Resources
from agentenv.isolation.registry import STRONGEST_FIRST, probe_all
from agentenv.monitoring.logs import logger
from agentenv.node import Node
from agentenv.server.settings import SandboxSettings

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Ground:
    """The backend `backend` with what it can do here; `defaults` are the limits of a sandbox that nobody set others for."""

    backend: str
    capabilities: Capabilities
    image: str
    defaults: Resources
    internet: bool

    def limits(self, *wishes: Resources) -> Resources:
        """The first limit that one of the `wishes` sets, or the default."""
        merged = self.defaults
        for wish in reversed(wishes):
            merged = merged.changed_by(wish)
        return merged

    async def prepare(self, node: Node, isolation: str) -> None:
        """Makes ready what the first sandbox of that isolation would wait for; but an image that comes over the network only once it is."""
        if self.image != "host":
            return
        try:
            await node.prepare(self.image, isolation)
        except AgentEnvError as error:
            _log.warning("server.not_prepared", error=str(error))


async def survey(settings: SandboxSettings) -> Ground:
    """Looks what there is. Raises `BackendUnavailable` where no sandbox can be made."""
    probe = _chosen(await asyncio.to_thread(probe_all), settings.isolation)
    can = probe.capabilities
    wanted = settings.resources
    defaults = Resources(cpu=min(wanted.cpu, os.cpu_count() or 1), memory=wanted.memory, storage=wanted.storage, pids=wanted.pids)
    for name, possible in (("cpu", can.cpu_limit), ("memory", can.memory_limit), ("pids", can.process_limit)):
        if not possible:
            _log.warning("server.no_limit", limit=name, backend=probe.backend, reason="this machine cannot enforce it")
            defaults = replace(defaults, **{name: None})
    if settings.internet and not can.network:
        _log.warning("server.no_network", backend=probe.backend, reason="this machine can give sandboxes no network of their own")
    image = settings.image or ("debian" if can.disk_image else "host")
    return Ground(probe.backend, can, image, defaults, settings.internet and can.network)


def reach_of(settings: SandboxSettings) -> Reach:
    """How far images and files of builds are fetched from for tenants: not from other machines of the operator's network."""
    if settings.private_destinations:
        return Reach()
    own = Reference.parse(settings.image or "")
    return Reach.public(() if own is None else (own.registry,))


def _chosen(probes: list[Probe], isolation: str) -> Probe:
    usable = {probe.backend: probe for probe in probes if probe.usable}
    names = STRONGEST_FIRST if isolation == "auto" else (isolation,)
    for name in names:
        if name in usable:
            return usable[name]
    reasons = " ".join(f"{probe.backend}: {probe.reason}" for probe in probes if probe.backend in names and not probe.usable)
    raise BackendUnavailable(
        f"no sandbox can be made here with isolation {isolation!r}. {reasons}".rstrip(),
        remedy="Run `agentenv doctor` for the whole report.",
    )
