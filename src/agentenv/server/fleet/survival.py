"""Which running sandboxes outlive the death of the server, as files: what the setting `crash.policy` says."""

from __future__ import annotations

from typing import Literal

from agentenv.server.fleet.records import Facts

CrashPolicy = Literal["lifecycle", "keep", "clean"]

SALVAGED = "agentenv.salvaged"
"""The key in a snapshot's metadata that says that it holds what a sandbox had when the server died."""


def outlives(policy: CrashPolicy, facts: Facts) -> bool:
    """Whether the files of a running sandbox are kept: all, none, or those of sandboxes that are paused when their time ends."""
    return policy == "keep" or (policy == "lifecycle" and facts.lifecycle.on_timeout == "pause")
