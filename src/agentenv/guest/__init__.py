"""Speaks to the agent in a sandbox: frames, one multiplexed connection, processes, files, directories as tar, plain sockets into it.

Everything here works on any byte stream, whatever wall stands around the agent.
"""

from agentenv.guest.connection import Connection
from agentenv.guest.dial import dial
from agentenv.guest.errors import AgentFailure, ConnectionLost
from agentenv.guest.native import binary
from agentenv.guest.processes import Command, Ended, Process, ProcessEntry

__all__ = ["AgentFailure", "Command", "Connection", "ConnectionLost", "Ended", "Process", "ProcessEntry", "binary", "dial"]
