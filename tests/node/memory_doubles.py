"""Machines without walls that can be written down: their memory is a text, their agent agrees to all, and each step can be made to fail."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.node.doubles import OpenBackend, OpenMachine

from agentenv.errors import AgentEnvError, InfrastructureError
from agentenv.guest.frames import Decoder, Kind, encode
from agentenv.isolation.contract import Capabilities, MachineSpec, Probe
from agentenv.node import Node, NodeSandbox

DISK = "disk.img"


@dataclass
class RememberingMachine(OpenMachine):
    """`memory` is what its processes hold; `said` what its agent was told, in order."""

    memory: str = "nothing yet"
    said: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    parents: list[str | None] = field(default_factory=list)
    gate: asyncio.Event | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def dial(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._answer, args=(theirs,), daemon=True).start()
        return ours

    @property
    def told(self) -> list[str]:
        return [operation for operation, _ in self.said]

    async def checkpoint(self, directory: Path, parent: Path | None = None) -> None:
        self.calls.append("checkpoint")
        self.parents.append(parent.name if parent else None)
        self.reached.set()
        if self.gate is not None:
            await self.gate.wait()
        (directory / "memory").write_text(self.memory)
        if "checkpoint" in self.fail_at:
            (directory / "memory").unlink()
            raise InfrastructureError("checkpoint failed on purpose")

    def _answer(self, stream: socket.socket) -> None:
        decoder = Decoder()
        with stream:
            while count := stream.recv_into(decoder.buffer()):
                for number, kind, body in decoder.received(count):
                    if kind is Kind.OPEN:
                        stream.sendall(self._do(number, dict(body)))

    def _do(self, number: int, body: dict[str, Any]) -> bytes:
        operation = str(body.pop("op"))
        self.said.append((operation, body))
        if operation in self.fail_at:
            return encode(number, Kind.ERROR, {"code": "EIO", "message": f"{operation} failed on purpose"})
        return encode(number, Kind.RESULT, {})


class RememberingBackend(OpenBackend):
    """With `disk` its uppers are one disk each. `fail_at` is what the next machines fail at, "restore" among it."""

    name = "remembering"

    def __init__(self, *, disk: bool = False) -> None:
        super().__init__()
        self.disk = disk
        self.fail_at: set[str] = set()

    def probe(self) -> Probe:
        able = Capabilities(memory_snapshot=True, filesystem_snapshot=True, pause=True, disk_image=self.disk)
        return Probe(self.name, True, "1", capabilities=able)

    async def start(self, spec: MachineSpec) -> RememberingMachine:
        if "start" in self.fail_at:
            raise InfrastructureError("start failed on purpose")
        if self.disk and not (spec.directory / "upper" / DISK).exists():
            (spec.directory / "upper" / DISK).write_text("empty")
        machine = RememberingMachine(spec, fail_at=set(self.fail_at))
        self.machines.append(machine)
        return machine

    async def restore(self, spec: MachineSpec, checkpoint: Path) -> RememberingMachine:
        if "restore" in self.fail_at:
            raise InfrastructureError("restore failed on purpose")
        machine = await self.start(spec)
        machine.memory = (checkpoint / "memory").read_text()
        return machine


def machine(sandbox: NodeSandbox) -> RememberingMachine:
    """The machine that it runs on now."""
    assert isinstance(sandbox.machine, RememberingMachine)
    return sandbox.machine


def born(children: list[NodeSandbox | AgentEnvError]) -> list[NodeSandbox]:
    """The children, when all were born."""
    assert all(isinstance(child, NodeSandbox) for child in children), children
    return [child for child in children if isinstance(child, NodeSandbox)]


def kept(node: Node) -> dict[str, list[str]]:
    """What lies below AGENTENV_HOME that a snapshot, or an attempt at one, could have left."""
    places = {name: node.home / "snapshots" / name for name in ("tree", "layers", "memory", "hibernated")}
    places["staging"] = node.owner.directory / "staging"
    return {name: sorted(path.name for path in place.iterdir()) for name, place in places.items()}


NOTHING: dict[str, list[str]] = {"tree": [], "layers": [], "memory": [], "hibernated": [], "staging": []}


def well(sandbox: NodeSandbox) -> bool:
    """Whether it runs, and its agent was told so last."""
    moves = [call for call in machine(sandbox).calls if call in ("pause", "resume")]
    words = [word for word in machine(sandbox).told if word in ("freeze", "thaw")]
    return sandbox.state == "running" and moves[-1:] != ["pause"] and words[-1:] != ["freeze"]
