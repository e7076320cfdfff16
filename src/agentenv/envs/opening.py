"""From a name and settings to the parts of an environment: its spec, and what makes sandboxes for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentenv.config import EnvironmentConfig
from agentenv.config.models import NetworkConfig
from agentenv.egress.policy import EgressPolicy
from agentenv.envs.handle import EnvTimeouts, SandboxFactory, SandboxHandle, SandboxSettings
from agentenv.envs.process import EnvironmentSpec
from agentenv.envs.registry import default_registry
from agentenv.isolation.contract import Resources, Timeouts
from agentenv.node.records import NetworkRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything needed to open lanes of one environment."""

    spec: EnvironmentSpec
    settings: SandboxSettings = field(default_factory=SandboxSettings)
    timeouts: EnvTimeouts = field(default_factory=EnvTimeouts)
    factory: SandboxFactory | None = None

    def sandbox(self, snapshot: str | None = None) -> SandboxHandle:
        """A new sandbox, from `snapshot` where one is named."""
        if self.factory is not None and snapshot is None:
            return self.factory()
        return create_sandbox(self.settings, self.timeouts, snapshot)


def plan(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
    settings: SandboxSettings | None = None,
    timeouts: EnvTimeouts | None = None,
    factory: SandboxFactory | None = None,
    **changes: Any,
) -> Plan:
    """Resolves the name. `changes` are fields of `SandboxSettings`. Raises `NotFound` for a name that is none."""
    found = default_registry().find(name)
    spec = EnvironmentSpec(name, found.target, {**found.options, **(options or {})}, render_mode)
    return Plan(spec, replace(settings or SandboxSettings(), **changes), timeouts or EnvTimeouts(), factory)


def create_sandbox(settings: SandboxSettings, timeouts: EnvTimeouts, snapshot: str | None) -> SandboxHandle:
    """A sandbox on this machine's node, or on a server."""
    from agentenv.sandbox import Sandbox

    return Sandbox.create(
        image=settings.image,
        snapshot=snapshot,
        isolation=settings.isolation,
        server=settings.server,
        resources=settings.resources,
        network=NetworkRequest(settings.network, settings.ports, settings.egress),
        env=settings.env,
        metadata=settings.metadata,
        timeouts=Timeouts(timeouts.startup, timeouts.shutdown),
    )


def settings_of(environment: EnvironmentConfig) -> SandboxSettings:
    """What a configuration says of each sandbox."""
    limits = environment.resources
    return SandboxSettings(
        image=environment.image,
        isolation=environment.isolation,
        server=environment.server,
        resources=Resources(**limits.model_dump()),
        network=environment.network.enabled,
        ports=environment.network.ports,
        egress=egress_of(environment.network),
        env=environment.env,
        metadata={"environment": environment.name},
    )


def egress_of(network: NetworkConfig) -> EgressPolicy:
    """What a configuration says of where a sandbox may go."""
    rates = network.bandwidth
    return EgressPolicy.of(network.allow_internet_access, network.allow, network.deny, upload=rates.up, download=rates.down)


def timeouts_of(environment: EnvironmentConfig) -> EnvTimeouts:
    """What a configuration says of time limits."""
    limits = environment.timeouts
    return EnvTimeouts(limits.startup, limits.shutdown, limits.reset, limits.step)
