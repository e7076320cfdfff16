"""Starts one process of QEMU with all that it needs, and waits for the agent in its guest."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from agentenv.errors import InfrastructureError, ProtocolError
from agentenv.guest.frames import Decoder, Kind
from agentenv.isolation.contract import MachineSpec, Resources
from agentenv.isolation.namespace.cgroups import Cgroup, CgroupTree, group_name
from agentenv.isolation.qemu.command import TRANSLATIONS_MIB, Boot, Copy, Hardware, Plan, Tap, throttle_of
from agentenv.isolation.qemu.ports import Ports, listen
from agentenv.isolation.qemu.qmp import Qmp
from agentenv.isolation.vm.disk import DISK
from agentenv.isolation.vm.finishing import finished, to_the_end
from agentenv.isolation.vm.network import GuestLink
from agentenv.isolation.vm.process import Monitor, Warden

Result = TypeVar("Result")

OWN_MEMORY = (128 + TRANSLATIONS_MIB) << 20
"""Bytes that QEMU itself is granted on top of its machine's memory; idle it takes some 40 MiB."""

_OWN_THREADS = 128
_TOLD = 1200


@dataclass(frozen=True, slots=True)
class Written:
    """The files of a checkpoint that a machine goes on from; `free` are the ports that nobody used then."""

    memory: Path
    devices: Path
    free: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Order:
    """What to start: `root` is the image that the guest has as its files, `link` its network."""

    spec: MachineSpec
    hardware: Hardware
    root: Path
    start: Boot | Written
    link: GuestLink | None


@dataclass(frozen=True, slots=True)
class Vmm:
    """One QEMU with its machine. `base` is a descriptor of the file that its memory is mapped from, where it is a copy; `disk_rate` is
    what its disks may move at most (bytes a second), whatever its own limits are."""

    hardware: Hardware
    root: Path
    monitor: Monitor
    qmp: Qmp
    ports: Ports
    cgroup: Cgroup
    base: int | None
    disk_rate: int | None
    _held: AsyncExitStack

    async def end(self) -> None:
        """Ends it whatever it does, and frees all that it held. Idempotent."""
        await to_the_end(self._held.aclose())

    @property
    def output(self) -> str:
        """What the console shows, and what QEMU itself had to say."""
        return self.monitor.output

    async def agent_answers(self) -> socket.socket:
        """A connection on which the agent has said its hello. Raises `InfrastructureError` when the machine ends instead."""
        return await or_end(_first_connection(self.ports), self.monitor)


@dataclass(frozen=True, slots=True)
class Launcher:
    """What the processes of one owner have in common: `program` is QEMU, `disk_rate` bytes a second of each machine's disks."""

    program: Path
    warden: Warden
    cgroups: CgroupTree
    owner: str
    disk_rate: int | None = None

    async def launch(self, order: Order) -> Vmm:
        """Starts a process that takes commands. Raises `InfrastructureError` with what it printed when it ends at once, OSError."""
        async with AsyncExitStack() as held:
            with ExitStack() as inherited:
                ports, near, plan, base = self._prepare(order, held, inherited)
                cgroup = self.cgroups.open(group_name(self.owner, order.spec.id))
                held.push_async_callback(asyncio.to_thread, cgroup.remove)
                await finished(lambda: self.cgroups.create(cgroup.name))
                # The processor's limit is set later: a start is not held back.
                cgroup.apply(Resources(memory=order.hardware.memory + OWN_MEMORY, pids=_OWN_THREADS))
                monitor = self.warden.spawn(
                    plan.words(),
                    groups=cgroup.entrances,
                    descriptors=plan.descriptors,
                    keeps_files_whole=base is not None,
                    # An emulated processor gains nothing by huge pages, and the host gets back less of what the guest frees.
                    small_pages=order.hardware.accelerator == "tcg",
                )
                held.push_async_callback(monitor.end)
                if isinstance(order.start, Written):
                    ports.connect_ahead()
            qmp = await or_end(Qmp.open(near, ports.changed), monitor)
            held.push_async_callback(qmp.close)
            ports.serve(qmp.plug_port)
            return Vmm(order.hardware, order.root, monitor, qmp, ports, cgroup, base, self.disk_rate, held.pop_all())

    def _prepare(self, order: Order, held: AsyncExitStack, inherited: ExitStack) -> tuple[Ports, socket.socket, Plan, int | None]:
        """What the process will inherit is on the stack `inherited`, to be closed as soon as it runs."""
        directory, start = order.spec.directory, order.start
        ports = Ports(directory, order.hardware.ports, start.free if isinstance(start, Written) else ())
        held.callback(ports.close)
        listeners = [inherited.enter_context(listener) for listener in listen(directory, range(1, order.hardware.ports + 1))]
        near, far = socket.socketpair()
        held.callback(near.close)
        inherited.enter_context(far)
        base = None
        if isinstance(start, Written):
            base = os.open(start.memory, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, base)
            state = os.open(start.devices, os.O_RDONLY | os.O_CLOEXEC)
            inherited.callback(os.close, state)
        tap = None
        if order.link is not None:
            tap = Tap(order.link.open(), order.link.mac, order.link.mtu)
            inherited.callback(os.close, tap.descriptor)
        plan = Plan(
            program=self.program,
            hardware=order.hardware,
            root=order.root,
            upper=directory / DISK,
            control=far.fileno(),
            ports=tuple(listener.fileno() for listener in listeners),
            start=Copy(start.memory, state) if isinstance(start, Written) else start,
            tap=tap,
            throttle=throttle_of(order.spec.resources, self.disk_rate),
        )
        return ports, near, plan, base


async def or_end(work: Coroutine[Any, Any, Result], monitor: Monitor) -> Result:
    """What `work` returns; raises `InfrastructureError` with what QEMU printed when that ends before."""
    working = asyncio.ensure_future(work)
    ending = asyncio.ensure_future(monitor.wait())
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done() and not (working.done() and working.exception() is None):
            raise _ended(monitor)
        try:
            return await working
        except InfrastructureError:
            # Its channel may break a moment before its end is seen.
            with suppress(TimeoutError):
                await asyncio.wait_for(monitor.wait(), 1.0)
                raise _ended(monitor) from None
            raise
    finally:
        working.cancel()
        ending.cancel()
        await asyncio.wait({working, ending})


def _ended(monitor: Monitor) -> InfrastructureError:
    printed = "\n".join(monitor.output.split("\r\n")).strip()[-_TOLD:] or "nothing"
    return InfrastructureError(
        f"the machine's QEMU {monitor.ended} before its agent answered; it had printed: {printed}\n",
        remedy="Is the kernel one with virtio over MMIO, and is the image whole?",
    )


async def _first_connection(ports: Ports) -> socket.socket:
    connection = await ports.first()
    try:
        await _hello(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def _hello(connection: socket.socket) -> None:
    """Returns when the agent has said its hello. Raises `InfrastructureError` when the connection is closed, `ProtocolError`."""
    loop, decoder = asyncio.get_running_loop(), Decoder()
    connection.setblocking(False)
    while True:
        count = await loop.sock_recv_into(connection, decoder.buffer())
        if count == 0:
            raise InfrastructureError("the machine closed the agent's port.")
        for stream, kind, body in decoder.received(count):
            if stream != 0 or kind is not Kind.EVENT or not isinstance(body, dict) or body.get("event") != "hello":
                raise ProtocolError(f"the agent began with a {kind.name} frame instead of its hello.")
            connection.setblocking(True)
            return
