"""The half of an environment that lives in the sandbox: the base class, spaces as plain data, and the server of the step protocol.

It needs nothing but the standard library, so that it runs in an image that has never heard of AgentENV; numpy and gymnasium are
imported only when the environment itself brings them.
"""

from agentenv.envs.guest.environment import Environment

__all__ = ["Environment"]
