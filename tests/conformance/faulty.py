"""Backends with one fault each, made of the namespace backend: what the suite has to find."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentenv.isolation.contract import Exit, Machine, MachineSpec, Probe, Timeouts
from agentenv.isolation.namespace.backend import NamespaceBackend


class Faulty:
    """The namespace backend under another name."""

    def __init__(self, name: str, inner: NamespaceBackend) -> None:
        self.name = name
        self.inner = inner

    def probe(self) -> Probe:
        return replace(self.inner.probe(), backend=self.name)

    async def start(self, spec: MachineSpec) -> Machine:
        return await self.inner.start(spec)

    async def close(self) -> None:
        await self.inner.close()


class Boastful(Faulty):
    """Claims memory snapshots that it does not have."""

    def probe(self) -> Probe:
        told = super().probe()
        return replace(told, capabilities=replace(told.capabilities, memory_snapshot=True))


class Patient(Faulty):
    """Takes no notice of how long a start may take."""

    async def start(self, spec: MachineSpec) -> Machine:
        return await self.inner.start(replace(spec, timeouts=Timeouts()))


class Restless(Faulty):
    """Its machines do not stand still."""

    async def start(self, spec: MachineSpec) -> Machine:
        machine = await self.inner.start(spec)
        machine.pause = machine.resume = _nothing  # type: ignore[method-assign]
        return machine


class Undying(Faulty):
    """Its machines say that they are killed, and go on."""

    async def start(self, spec: MachineSpec) -> Machine:
        machine = await self.inner.start(spec)
        machine.kill = _pretend  # type: ignore[method-assign]
        return machine


class Forgetful(Faulty):
    """Gives every machine the same name."""

    async def start(self, spec: MachineSpec) -> Machine:
        return await self.inner.start(replace(spec, hostname="box"))


async def _nothing() -> None:
    return None


async def _pretend() -> Exit:
    return Exit(None, 9, "it was killed")


async def open_boastful(directory: Path) -> Faulty:
    return Boastful("boastful", await NamespaceBackend.open(directory))


async def open_patient(directory: Path) -> Faulty:
    return Patient("patient", await NamespaceBackend.open(directory))


async def open_restless(directory: Path) -> Faulty:
    return Restless("restless", await NamespaceBackend.open(directory))


async def open_undying(directory: Path) -> Faulty:
    return Undying("undying", await NamespaceBackend.open(directory))


async def open_forgetful(directory: Path) -> Faulty:
    return Forgetful("forgetful", await NamespaceBackend.open(directory))
