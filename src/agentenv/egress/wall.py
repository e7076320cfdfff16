"""The wall inside one sandbox's network namespace, with the socket on which the kernel tells what it refused.

The sandbox's processes have no right to change it. It holds even when somebody empties the host's rules.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from agentenv.egress import denials, nftables, rules
from agentenv.egress.netns import inside
from agentenv.egress.policy import EgressPolicy


@dataclass(frozen=True, slots=True)
class Wall:
    """One wall. `refusals` is non-blocking, for `denials.waiting`."""

    netns: Path
    nameservers: tuple[str, ...]
    refusals: socket.socket

    @classmethod
    def build(cls, netns: Path, nameservers: tuple[str, ...]) -> Wall:
        """With the policy that all sandboxes have by default. Blocks for about a millisecond; raises `InfrastructureError`, `OSError`."""

        def work() -> socket.socket:
            nftables.apply(rules.inner_wall(nameservers))
            return denials.listen(rules.LOG_GROUP)

        return cls(netns, nameservers, inside(netns, work))

    def change(self, policy: EgressPolicy) -> None:
        """Puts `policy` in force in one transaction; blocks for some milliseconds. Raises `InfrastructureError`; then nothing changed."""
        text = rules.inner_change(policy, self.nameservers)
        inside(self.netns, lambda: nftables.apply(text))

    def close(self) -> None:
        """Listens no more; the rules go with the namespace. Idempotent."""
        self.refusals.close()
