"""What a checkpoint says of itself, and where it may be restored."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

import msgspec

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.isolation.firecracker.release import Release

FILE = "agentenv.json"
FORMAT = 1
_HOW_TO = "Make the checkpoint anew on this machine, or restore it where it was made."


class Facts(msgspec.Struct, frozen=True):
    """`memory` is in bytes, `cores` are the guest's processors, `balloon` is how many MiB of the memory are taken from it.

    `epoch` names the moment: what is written later is told apart from it by the monitor that was there. `snapshot_format` is that of
    Firecracker's state file, `cpu` the host's processor, `cpu_template` what was made of it for the guest, `drives` the files of the jail
    that the guest has as disks, `image` which read-only one it has, `network` whether it has an interface.
    """

    format: int
    firecracker: str
    snapshot_format: tuple[int, ...]
    cpu: str
    cpu_template: str | None
    memory: int
    cores: int
    balloon: int
    epoch: str
    drives: tuple[str, ...]
    image: str | None
    network: bool


def write_facts(directory: Path, facts: Facts) -> None:
    """Raises OSError."""
    (directory / FILE).write_bytes(msgspec.json.encode(facts))


def peek(directory: Path) -> Facts:
    """What the checkpoint says of itself. Raises `InfrastructureError` for what is no whole one of this format."""
    try:
        content = (directory / FILE).read_bytes()
        found = msgspec.json.decode(content, type=dict[str, object]).get("format")
        if found != FORMAT:
            raise CapabilityError(f"the checkpoint in {directory} has format {found}; this AgentENV reads {FORMAT}.", remedy=_HOW_TO)
        return msgspec.json.decode(content, type=Facts)
    except (OSError, msgspec.MsgspecError) as error:
        raise InfrastructureError(f"{directory} holds no whole Firecracker checkpoint: {error}.", remedy="Make it anew.") from error


def read_facts(directory: Path, release: Release) -> Facts:
    """Of a checkpoint that this machine's Firecracker `release` can restore.

    Raises `InfrastructureError` for what is no whole one, `CapabilityError` for one of another processor or a newer Firecracker.
    """
    facts = peek(directory)
    if not release.reads(facts.snapshot_format):
        theirs, ours = (".".join(map(str, numbers)) for numbers in (facts.snapshot_format, release.snapshot_format))
        raise CapabilityError(
            f"the checkpoint in {directory} was made by Firecracker {facts.firecracker} (state format {theirs}); this machine has "
            f"{release} (state format {ours}).",
            remedy=_HOW_TO,
        )
    # A template makes the processors of one maker look alike (Firecracker, docs/cpu_templates).
    here = host_cpu()
    if facts.cpu != here and (facts.cpu_template is None or facts.cpu.split()[0] != here.split()[0]):
        raise CapabilityError(
            f"the checkpoint in {directory} was made on another processor ({facts.cpu}) than this machine's ({here}).", remedy=_HOW_TO
        )
    return facts


@functools.cache
def host_cpu() -> str:
    """This machine's processor as guests see it: its model, and a digest of what it can do."""
    text = Path("/proc/cpuinfo").read_text()

    def field(name: str) -> str:
        found = re.search(rf"^{name}\s*: *(.*)$", text, re.MULTILINE)
        return found[1] if found else "?"

    features = hashlib.sha256(" ".join(sorted(field("flags").split())).encode()).hexdigest()[:8]
    return f"{field('vendor_id')} {field('cpu family')}/{field('model')} ({field('model name')}), features {features}"
