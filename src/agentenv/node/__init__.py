"""The node: owns the sandboxes of one process on one machine. It starts and ends them, keeps their snapshots as a tree, remembers in a
journal what runs, and frees what a crash left. Everything above asks a `Node`; nothing above touches a backend, a layer or a journal.
"""

from agentenv.node.node import Node
from agentenv.node.records import NetworkRequest, SandboxRecord, SandboxRequest
from agentenv.node.sandbox import NodeSandbox

__all__ = ["NetworkRequest", "Node", "NodeSandbox", "SandboxRecord", "SandboxRequest"]
