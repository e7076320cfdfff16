"""The sandboxes of the server: created, found, paused, resumed, forked, ended, over the node of this machine, and never lost in a crash."""

from agentenv.server.fleet.archive import Sample
from agentenv.server.fleet.branches import Named
from agentenv.server.fleet.fleet import Fleet
from agentenv.server.fleet.logbook import Logbook, LogLine
from agentenv.server.fleet.records import ENVD_VERSION, Lifecycle, NetworkRules, SandboxView, State, Wish

__all__ = ["ENVD_VERSION", "Fleet", "Lifecycle", "LogLine", "Logbook", "Named", "NetworkRules", "Sample", "SandboxView", "State", "Wish"]
