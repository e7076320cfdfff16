"""What a checkpoint's directory holds besides gVisor's own three files: who made it, and where the agent's stream stood."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.isolation.gvisor.trunk import Carried

FILE = "agentenv.msgpack"
FORMAT = 1
_HOW_TO = "Make the checkpoint anew on this machine, or install the runsc that made it."


class Facts(msgspec.Struct, frozen=True):
    """`runsc` is the version that wrote the checkpoint: gVisor reads only its own version's."""

    format: int
    runsc: str
    stream: Carried


def write_facts(directory: Path, runsc: str, stream: Carried) -> None:
    """Raises OSError."""
    (directory / FILE).write_bytes(msgspec.msgpack.encode(Facts(FORMAT, runsc, stream)))


def read_facts(directory: Path, runsc: str) -> Facts:
    """Raises `InfrastructureError` for what is no whole checkpoint, `CapabilityError` for one that this `runsc` cannot restore."""
    try:
        facts = msgspec.msgpack.decode((directory / FILE).read_bytes(), type=Facts)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InfrastructureError(f"{directory} holds no whole gVisor checkpoint: {error}.", remedy="Make it anew.") from error
    if facts.format != FORMAT:
        raise CapabilityError(f"the checkpoint in {directory} has format {facts.format}; this AgentENV reads {FORMAT}.", remedy=_HOW_TO)
    if facts.runsc != runsc:
        raise CapabilityError(f"the checkpoint in {directory} was made by {facts.runsc}; this machine has {runsc}.", remedy=_HOW_TO)
    return facts
