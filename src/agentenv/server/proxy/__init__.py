"""The way into sandboxes: requests that name a sandbox and a port of it, by host name, headers or path, are passed on to it.

Port 49983 is envd, which the server itself plays; all others are whatever listens in the sandbox.
"""

from agentenv.server.proxy.middleware import SandboxProxy, install

__all__ = ["SandboxProxy", "install"]
