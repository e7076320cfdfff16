"""The user's handle on one sandbox, `AsyncSandbox`, and its synchronous face `Sandbox`: commands, files, terminals, a persistent
shell, ports, snapshots and forks. The node below owns the machine; what happens inside goes through the agent.
"""

from agentenv.node.records import NetworkRequest
from agentenv.node.snapshots import Snapshot
from agentenv.sandbox.command_handle import AsyncCommandHandle
from agentenv.sandbox.commands import AsyncCommands
from agentenv.sandbox.files import AsyncFiles
from agentenv.sandbox.pty import AsyncPty
from agentenv.sandbox.results import (
    CommandResult,
    EntryInfo,
    FilesystemEvent,
    FilesystemEventType,
    FileType,
    OutputPiece,
    ProcessInfo,
    PtySize,
    SandboxInfo,
    Transfer,
    WriteEntry,
    WriteInfo,
)
from agentenv.sandbox.runtime import default_node, runtime
from agentenv.sandbox.sandbox import AsyncSandbox
from agentenv.sandbox.shell import AsyncShell
from agentenv.sandbox.sync import CommandHandle, Commands, Files, Pty, Sandbox, Shell, WatchHandle
from agentenv.sandbox.watch import AsyncWatchHandle

__all__ = [
    "AsyncCommandHandle",
    "AsyncCommands",
    "AsyncFiles",
    "AsyncPty",
    "AsyncSandbox",
    "AsyncShell",
    "AsyncWatchHandle",
    "CommandHandle",
    "CommandResult",
    "Commands",
    "EntryInfo",
    "FileType",
    "Files",
    "FilesystemEvent",
    "FilesystemEventType",
    "NetworkRequest",
    "OutputPiece",
    "ProcessInfo",
    "Pty",
    "PtySize",
    "Sandbox",
    "SandboxInfo",
    "Shell",
    "Snapshot",
    "Transfer",
    "WatchHandle",
    "WriteEntry",
    "WriteInfo",
    "default_node",
    "runtime",
]
