"""What a checkpoint's directory holds besides gVisor's own three files: who made it, and where the agent's stream stood."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.isolation.gvisor.trunk import Carried

FILE = "agentenv.msgpack"
FORMAT = 1
_AS_BEFORE = "Restore it with the same `network.enabled`."
_HOW_TO = "Make the checkpoint anew on this machine, or install the runsc that made it."


class Facts(msgspec.Struct, frozen=True):
    """`runsc` is the version that wrote the checkpoint: gVisor reads only its own version's."""

    format: int
    runsc: str
    stream: Carried
    network: bool = False
    """Whether its agent has a network's interface to care for."""


def write_facts(directory: Path, runsc: str, stream: Carried, *, network: bool) -> None:
    """Raises OSError."""
    (directory / FILE).write_bytes(msgspec.msgpack.encode(Facts(FORMAT, runsc, stream, network)))


def read_facts(directory: Path, runsc: str, *, network: bool) -> Facts:
    """Raises `InfrastructureError` for what is no whole checkpoint, `CapabilityError` for one that this `runsc` cannot restore, or
    that is of a machine with a network where the new one shall have none (`network`), or the other way round.
    """
    try:
        facts = msgspec.msgpack.decode((directory / FILE).read_bytes(), type=Facts)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InfrastructureError(f"{directory} holds no whole gVisor checkpoint: {error}.", remedy="Make it anew.") from error
    if facts.format != FORMAT:
        raise CapabilityError(f"the checkpoint in {directory} has format {facts.format}; this AgentENV reads {FORMAT}.", remedy=_HOW_TO)
    if facts.runsc != runsc:
        raise CapabilityError(f"the checkpoint in {directory} was made by {facts.runsc}; this machine has {runsc}.", remedy=_HOW_TO)
    if facts.network != network:
        had, wanted = ("a network", "none") if facts.network else ("no network", "one")
        raise CapabilityError(
            f"the checkpoint in {directory} is of a sandbox with {had} and cannot go on with {wanted}.", remedy=_AS_BEFORE
        )
    return facts
