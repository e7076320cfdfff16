"""A backend without walls, for what the node does itself: its machines are directories, and it can be told to fail at any step."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.errors import InfrastructureError, SandboxDied, Stage
from agentenv.isolation.contract import Exit, MachineSpec, OomKill, Probe, Resources, Usage


@dataclass
class OpenMachine:
    """A machine that anybody can write into: what its processes would write goes to `write` and `remove`."""

    spec: MachineSpec
    passes_descriptors: bool = True
    stages: tuple[Stage, ...] = (Stage("launch", 0.001),)
    calls: list[str] = field(default_factory=list)
    fail_at: set[str] = field(default_factory=set)
    ended: asyncio.Future[Exit] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def id(self) -> str:
        return self.spec.id

    def dial(self) -> socket.socket:
        raise SandboxDied(self.id, "it has no agent")

    async def pause(self) -> None:
        await self._call("pause")

    async def resume(self) -> None:
        await self._call("resume")

    async def resize(self, resources: Resources) -> None:
        await self._call("resize")

    async def usage(self) -> Usage:
        return Usage()

    async def oom_kills(self) -> tuple[OomKill, ...]:
        return ()

    async def process_limit_hits(self) -> int:
        return 0

    async def kill(self) -> Exit:
        await self._call("kill")
        self.die("it was killed")
        return await self.ended

    async def wait(self) -> Exit:
        return await asyncio.shield(self.ended)

    def die(self, reason: str) -> None:
        """It ends by itself."""
        if not self.ended.done():
            self.ended.set_result(Exit(None, 9, reason))

    async def _call(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(0)
        if name in self.fail_at:
            raise InfrastructureError(f"{name} failed on purpose")

    @property
    def upper(self) -> Path:
        return self.spec.directory / "upper" / self.spec.root.trees[0].name

    def write(self, name: str, content: str) -> None:
        """As a program in the sandbox would."""
        path = self.upper / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_char_device():
            path.unlink()
        path.write_text(content)

    def remove(self, name: str) -> None:
        """As overlayfs does: a whiteout hides what lies below."""
        path = self.upper / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR, 0)

    def files(self) -> dict[str, str]:
        """What a program in the sandbox would see of the snapshots' and its own files (the image's left out)."""
        seen: dict[str, str] = {}
        layers = [lower for lower in self.spec.root.trees[0].lowers if lower.parent.parent.name == "layers"]
        for layer in (*reversed(layers), self.upper):
            for path in sorted(layer.rglob("*")):
                name = str(path.relative_to(layer))
                if path.is_char_device():
                    seen.pop(name, None)
                elif path.is_file():
                    seen[name] = path.read_text()
        return seen


class OpenBackend:
    """Starts `OpenMachine`s; `before_start` runs inside `start` and may raise or wait."""

    name = "open"

    def __init__(self) -> None:
        self.machines: list[OpenMachine] = []
        self.failures: list[BaseException] = []
        self.closed = False

    def probe(self) -> Probe:
        return Probe("open", True, "1")

    async def start(self, spec: MachineSpec) -> OpenMachine:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        machine = OpenMachine(spec)
        self.machines.append(machine)
        return machine

    async def close(self) -> None:
        self.closed = True
