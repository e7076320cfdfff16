"""Starts machines for sandboxes: fresh from a template, or anew from what a pause kept."""

from __future__ import annotations

from dataclasses import dataclass

from agentenv.errors import CapabilityError, Unsupported
from agentenv.node import NetworkRequest, Node, SandboxRequest
from agentenv.sandbox import AsyncSandbox
from agentenv.server.catalogue import Build
from agentenv.server.fleet.ground import Ground
from agentenv.server.fleet.records import Facts, NetworkRules

MARK = "agentenv.sandbox"
"""The key in a machine's metadata, and in that of snapshots of it, that says which sandbox of the server it is."""

EVERYWHERE = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True, slots=True)
class Births:
    """Does it for one node."""

    node: Node
    ground: Ground
    isolation: str

    async def from_build(self, identifier: str, facts: Facts, build: Build) -> AsyncSandbox:
        """A machine with the files of a build. Raises what `Node.create` raises."""
        return await self._start(identifier, facts, image=build.image, snapshot=build.snapshot)

    async def from_snapshot(self, identifier: str, facts: Facts, snapshot: str) -> AsyncSandbox:
        """A machine with the files that a pause kept."""
        return await self._start(identifier, facts, image=None, snapshot=snapshot)

    def internet(self, rules: NetworkRules) -> bool:
        """Whether the outside world can be reached under these rules.

        Raises `CapabilityError` where it is asked for and cannot be had, `Unsupported` for rules that this node cannot enforce.
        """
        denied = any(entry in EVERYWHERE for entry in rules.deny_out)
        if rules.allow_out or any(entry not in EVERYWHERE for entry in rules.deny_out):
            raise Unsupported("this server cannot yet allow or deny single destinations.", remedy="Allow the internet, or deny all of it.")
        wanted = self.ground.internet if rules.internet is None else rules.internet
        if rules.internet and not self.ground.capabilities.network:
            raise CapabilityError("this server can give sandboxes no network of their own.", remedy="Leave allow_internet_access out.")
        return wanted and not denied

    async def _start(self, identifier: str, facts: Facts, *, image: str | None, snapshot: str | None) -> AsyncSandbox:
        request = SandboxRequest(
            image=image or self.ground.image,
            snapshot=snapshot,
            isolation=self.isolation,
            resources=facts.resources,
            network=NetworkRequest(enabled=self.internet(facts.network)),
            env=facts.env,
            metadata={MARK: identifier},
        )
        return AsyncSandbox(await self.node.create(request), self.node)
