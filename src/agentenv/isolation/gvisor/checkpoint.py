"""What a checkpoint's directory holds besides gVisor's own three files: who made it, where the agent's stream stood, and the agent.

gVisor does not write down what lies in files, and reads a program's again by name: another one there, and the machine crashes.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.isolation.gvisor.trunk import Carried

FILE = "agentenv.msgpack"
AGENT = "agent"
FORMAT = 2
_AS_BEFORE = "Restore it with the same `network.enabled`."
_HOW_TO = "Make the checkpoint anew on this machine, or install the runsc that made it."


class _Format(msgspec.Struct, frozen=True):
    format: int


class Facts(msgspec.Struct, frozen=True):
    """`runsc` is the version that wrote the checkpoint: gVisor reads only its own version's."""

    format: int
    runsc: str
    stream: Carried
    network: bool
    """Whether its agent has a network's interface to care for."""

    agent: str
    """The SHA-256 of the agent's program."""


def write_facts(directory: Path, runsc: str, stream: Carried, *, network: bool, agent: Path) -> None:
    """`agent` is the program that the machine runs. Raises OSError."""
    shutil.copy(agent, directory / AGENT)
    facts = Facts(FORMAT, runsc, stream, network, _digest(directory / AGENT))
    (directory / FILE).write_bytes(msgspec.msgpack.encode(facts))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def read_facts(directory: Path, runsc: str, *, network: bool) -> Facts:
    """Raises `InfrastructureError` for what is no whole checkpoint, `CapabilityError` for one that this `runsc` cannot restore, or
    that is of a machine with a network where the new one shall have none (`network`), or the other way round.
    """
    try:
        content = (directory / FILE).read_bytes()
        written = msgspec.msgpack.decode(content, type=_Format).format
        if written != FORMAT:
            raise CapabilityError(f"the checkpoint in {directory} has format {written}; this AgentENV reads {FORMAT}.", remedy=_HOW_TO)
        facts = msgspec.msgpack.decode(content, type=Facts)
        whole = facts.agent == _digest(directory / AGENT)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InfrastructureError(f"{directory} holds no whole gVisor checkpoint: {error}.", remedy="Make it anew.") from error
    if not whole:
        raise InfrastructureError(f"{directory} holds no whole gVisor checkpoint: its agent is damaged.", remedy="Make it anew.")
    if facts.runsc != runsc:
        raise CapabilityError(f"the checkpoint in {directory} was made by {facts.runsc}; this machine has {runsc}.", remedy=_HOW_TO)
    if facts.network != network:
        had, wanted = ("a network", "none") if facts.network else ("no network", "one")
        raise CapabilityError(
            f"the checkpoint in {directory} is of a sandbox with {had} and cannot go on with {wanted}.", remedy=_AS_BEFORE
        )
    return facts
