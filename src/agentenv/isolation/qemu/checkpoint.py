"""What the directory of a checkpoint holds: `machine.json` with what it needs to be restored, the memory, and the `devices`' state."""

from __future__ import annotations

import platform
import zlib
from pathlib import Path

import msgspec

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.isolation.qemu.command import Hardware
from agentenv.isolation.vm import memory_layers

FORMAT = 1
FACTS, DEVICES = "machine.json", "devices"
_HOW_TO = "Make the checkpoint anew on this machine."


class Facts(msgspec.Struct, frozen=True):
    """`qemu` is the version that wrote the devices' state, `root` the name of the root image, which says what is in it.

    `processor` names the host's, where the guest runs on it. `free` are the ports that the guest had open and nobody used. `devices` and
    `checksum` (CRC-32) are of the file with the devices' state, whose damage QEMU might not notice.
    """

    format: int
    qemu: str
    hardware: Hardware
    root: str
    processor: str | None
    free: tuple[int, ...]
    devices: int
    checksum: int


def write_facts(directory: Path, *, qemu: str, hardware: Hardware, root: Path, free: tuple[int, ...]) -> None:
    """Raises OSError."""
    devices = (directory / DEVICES).read_bytes()
    processor = host_processor() if hardware.accelerator == "kvm" else None
    facts = Facts(FORMAT, qemu, hardware, root.name, processor, free, len(devices), zlib.crc32(devices))
    (directory / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(facts)))


def read_facts(directory: Path, *, qemu: str, accelerator: str) -> Facts:
    """Raises `InfrastructureError` for what is no whole checkpoint, `CapabilityError` for one that this machine cannot restore."""
    try:
        facts = _decode((directory / FACTS).read_bytes(), directory)
        devices, layers = (directory / DEVICES).read_bytes(), memory_layers.layers(directory)
        sizes = {layer: layer.stat().st_size for layer in layers}
    except (OSError, msgspec.DecodeError) as error:
        raise InfrastructureError(f"{directory} holds no whole checkpoint of a machine: {error}.", remedy="Make it anew.") from error
    if len(devices) != facts.devices or zlib.crc32(devices) != facts.checksum:
        raise InfrastructureError(f"{directory / DEVICES} was cut off or changed.", remedy="Make the checkpoint anew.")
    if not layers:
        raise InfrastructureError(f"{directory} holds no whole checkpoint of a machine: no memory.", remedy="Make it anew.")
    if short := [layer for layer, size in sizes.items() if size != facts.hardware.memory]:
        raise InfrastructureError(
            f"{short[0]} has {sizes[short[0]]} bytes, and the machine had {facts.hardware.memory}.", remedy="Make the checkpoint anew."
        )
    _require_same(directory, "QEMU", facts.qemu, qemu)
    _require_same(directory, "the accelerator", facts.hardware.accelerator, accelerator)
    if facts.processor is not None:
        _require_same(directory, "the processor", facts.processor, host_processor())
    return facts


def _decode(content: bytes, directory: Path) -> Facts:
    # Of another format nothing but its number is known.
    found = msgspec.json.decode(content, type=dict[str, object]).get("format")
    if found != FORMAT:
        raise CapabilityError(f"the checkpoint in {directory} has format {found}; this AgentENV reads {FORMAT}.", remedy=_HOW_TO)
    return msgspec.json.decode(content, type=Facts)


def _require_same(directory: Path, what: str, then: str, now: str) -> None:
    if then != now:
        raise CapabilityError(f"the checkpoint in {directory} was made with {what} {then!r}; here it is {now!r}.", remedy=_HOW_TO)


def require_root(directory: Path, facts: Facts, root: Path) -> None:
    """Raises `CapabilityError` where the machine that was written down had another root image."""
    _require_same(directory, "the root image", facts.root, root.name)


def require_disk(facts: Facts, disk: Path) -> None:
    """Raises `InfrastructureError` where `disk` is not the one that belongs to the checkpoint."""
    try:
        found = disk.stat().st_size
    except OSError as error:
        raise InfrastructureError(f"the disk that belongs to the checkpoint is not there: {error}.") from error
    if found != facts.hardware.disk:
        raise InfrastructureError(f"{disk} has {found} bytes, and the checkpoint's disk has {facts.hardware.disk}: it was cut off.")


def host_processor() -> str:
    """The host's processor, its model and what it can do: what a guest that runs on it may have come to rely on."""
    if platform.machine() != "x86_64":
        return platform.machine()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    flags = next((line.split(":", 1)[1] for line in lines if line.startswith("flags")), "")
    return f"{model}, features {zlib.crc32(flags.encode()):08x}"


def empty(directory: Path) -> None:
    """Removes the files that a checkpoint which failed has left."""
    for path in list(directory.iterdir()):
        if path.is_file():
            path.unlink()
