"""Starts machines for sandboxes: fresh from a template, or anew from what a pause kept."""

from __future__ import annotations

from dataclasses import dataclass

from agentenv.egress.policy import EgressPolicy, is_named
from agentenv.errors import CapabilityError, ConfigError
from agentenv.node import NetworkRequest, Node, SandboxRequest
from agentenv.node.templates import Startup
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.startup import run_startup
from agentenv.server.catalogue import Build, Recipe
from agentenv.server.fleet.ground import Ground
from agentenv.server.fleet.records import Facts, NetworkRules
from agentenv.server.settings import SandboxSettings

MARK = "agentenv.sandbox"
"""The key in a machine's metadata, and in that of snapshots of it, that says which sandbox of the server it is."""

NO_IPV6 = "::/0"
"""What clients deny along with 0.0.0.0/0: sandboxes have no IPv6 anyhow."""


@dataclass(frozen=True, slots=True)
class Births:
    """Does it for one node."""

    node: Node
    ground: Ground
    settings: SandboxSettings

    async def from_build(self, identifier: str, facts: Facts, build: Build) -> AsyncSandbox:
        """A machine with what a build holds, its start command ready. Raises what `Node.create` and `run_startup` raise."""
        handle = await self._start(identifier, facts, image=build.image, snapshot=build.snapshot)
        return await _ready(handle, build.recipe)

    async def from_snapshot(
        self, identifier: str, facts: Facts, snapshot: str, *, memory: bool, recipe: Recipe | None = None
    ) -> AsyncSandbox:
        """A machine with what a pause kept; without `memory`, with its files only, and with the start command of `recipe` ready again."""
        handle = await self._start(identifier, facts, image=None, snapshot=snapshot, memory=memory)
        return handle if recipe is None else await _ready(handle, recipe)

    def network(self, rules: NetworkRules) -> NetworkRequest:
        """The network of a sandbox under these rules.

        Raises `ConfigError` for a destination that makes no sense or that the operator keeps closed, `CapabilityError` where this machine
        can give no network.
        """
        internet = self.ground.internet if rules.internet is None else rules.internet
        asked = bool(rules.internet or rules.allow_out)
        if not self.ground.capabilities.network:
            if asked:
                raise CapabilityError("this server can give sandboxes no network of their own.", remedy="Ask for no internet access.")
            return NetworkRequest()
        try:
            denied = [entry for entry in rules.deny_out if entry != NO_IPV6]
            policy = EgressPolicy.of(internet, rules.allow_out, denied, upload=rules.upload, download=rules.download)
        except ValueError as error:
            raise ConfigError(str(error), key="network") from error
        self._check_reach(policy)
        # Also without the internet, where it is the rule to have it: not every backend can add a network to a running sandbox.
        return NetworkRequest(enabled=self.ground.internet or asked or rules.connected, policy=policy)

    def _check_reach(self, policy: EgressPolicy) -> None:
        """Other machines of the operator's network are nothing that a tenant may open for itself."""
        for block in policy.allowed_blocks:
            if is_named(block) and not self.settings.private_destinations:
                raise ConfigError(
                    f"{block} is not on the public internet", key="network.allowOut", remedy="Ask the operator to allow such destinations."
                )

    async def _start(self, identifier: str, facts: Facts, *, image: str | None, snapshot: str | None, memory: bool = True) -> AsyncSandbox:
        request = SandboxRequest(
            image=image or self.ground.image,
            snapshot=snapshot,
            isolation=self.settings.isolation,
            resources=facts.resources,
            network=self.network(facts.network),
            env=facts.env,
            metadata={MARK: identifier},
            memory=None if memory else False,
        )
        return AsyncSandbox(await self.node.create(request), self.node)


async def _ready(handle: AsyncSandbox, recipe: Recipe) -> AsyncSandbox:
    try:
        await run_startup(handle.commands, Startup(recipe.start_command, recipe.ready_command, user=recipe.user, cwd=recipe.cwd))
    except BaseException:
        await handle.kill()
        raise
    return handle
