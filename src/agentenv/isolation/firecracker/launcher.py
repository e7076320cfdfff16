"""Starts Firecracker processes, each in a jail and a cgroup of its own. A process holds no machine yet: it is booted or loaded into it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.isolation.contract import Network
from agentenv.isolation.firecracker.api import Api
from agentenv.isolation.firecracker.jail import API, METRICS, Jail
from agentenv.isolation.firecracker.release import Programs
from agentenv.isolation.namespace.cgroups import Cgroup, CgroupTree, group_name
from agentenv.isolation.vm.arrival import arrival
from agentenv.isolation.vm.finishing import finished, to_the_end
from agentenv.isolation.vm.network import GuestLink, connect_guest
from agentenv.isolation.vm.process import Monitor, Warden

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_MOMENT = 0.0005
_TOLD = 800


def require_devices(directory: Path) -> None:
    """Raises `BackendUnavailable` where a jail's /dev/kvm could not be opened, since the file system of `directory` is mounted `nodev`."""
    if os.statvfs(directory).f_flag & os.ST_NODEV:
        raise BackendUnavailable(
            f"{directory} lies on a file system that is mounted `nodev`, where Firecracker's jail cannot have /dev/kvm.",
            remedy="Put AGENTENV_HOME on another file system, or do without the jailer: AGENTENV_FIRECRACKER_JAIL=off.",
        )


@dataclass(slots=True)
class Vmm:
    """One process that answers its API. `metrics` is a descriptor of its metrics' pipe; `link` is its network, where it has one."""

    jail: Jail
    cgroup: Cgroup
    monitor: Monitor
    api: Api
    metrics: int
    link: GuestLink | None
    _held: AsyncExitStack

    async def end(self) -> None:
        """Ends it whatever it does, and frees all that it held. Idempotent."""
        await to_the_end(self._held.aclose())


@dataclass(frozen=True, slots=True)
class Launcher:
    """What the processes of one owner have in common; `directory` holds their jails. Made by `open`."""

    programs: Programs
    warden: Warden
    cgroups: CgroupTree
    owner: str
    directory: Path
    nowhere: Path | None
    _held: AsyncExitStack = field(repr=False)

    @classmethod
    async def open(cls, programs: Programs, cgroups: CgroupTree, owner_dir: Path) -> Launcher:
        """Raises `BackendUnavailable` where no warden can be started, or no jail can have devices."""
        if programs.jailer is not None:
            require_devices(owner_dir)
        async with AsyncExitStack() as held:
            directory = owner_dir / "jails"
            await asyncio.to_thread(directory.mkdir, mode=0o700, exist_ok=True)
            warden = await asyncio.to_thread(Warden.open)
            held.push_async_callback(asyncio.to_thread, warden.close)
            nowhere = await asyncio.to_thread(_empty_network, held)
            return cls(programs, warden, cgroups, owner_dir.name, directory, nowhere, held.pop_all())

    async def launch(self, network: Network | None = None) -> Vmm:
        """Starts a process (a few milliseconds), in the slot of an enabled `network`, else in an empty one. On failure nothing is left.

        Raises `InfrastructureError` with what it printed when it ends instead of answering.
        """
        async with AsyncExitStack() as held:
            jail = Jail.plan(self.directory, self.programs)
            held.push_async_callback(asyncio.to_thread, jail.remove)
            await finished(jail.make)
            metrics = os.open(jail.root / METRICS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            held.callback(os.close, metrics)
            cgroup = self.cgroups.open(group_name(self.owner, jail.id))
            held.push_async_callback(asyncio.to_thread, cgroup.remove)
            await finished(lambda: self.cgroups.create(cgroup.name))
            link = None
            if network is not None and network.enabled:
                link = await asyncio.to_thread(connect_guest, network, owner=jail.user)
            monitor = self.warden.spawn(
                jail.command(self.programs),
                netns=self.nowhere if link is None else link.netns,
                cwd=jail.root,
                groups=cgroup.entrances,
            )
            held.push_async_callback(monitor.end)
            api = Api(jail.root / API)
            held.push_async_callback(asyncio.to_thread, api.close)
            await _until_it_listens(monitor, api)
            return Vmm(jail, cgroup, monitor, api, metrics, link, held.pop_all())

    async def close(self) -> None:
        """Ends every process that is left. Idempotent."""
        await self._held.aclose()


async def _until_it_listens(monitor: Monitor, api: Api) -> None:
    """Returns when `api` is connected. Raises `InfrastructureError` when the monitor ends before."""
    listening = asyncio.ensure_future(_connected(monitor, api))
    ended = asyncio.ensure_future(monitor.wait())
    try:
        await asyncio.wait({listening, ended}, return_when=asyncio.FIRST_COMPLETED)
        if monitor.ended is not None:
            raise InfrastructureError(
                f"Firecracker {monitor.ended} before it answered; it had printed: {monitor.output.strip()[-_TOLD:] or 'nothing'}",
                remedy="Run `agentenv doctor`.",
            )
        await listening
    finally:
        listening.cancel()
        ended.cancel()
        await asyncio.wait({listening, ended})


async def _connected(monitor: Monitor, api: Api) -> None:
    await arrival(api.socket)
    while monitor.ended is None:
        try:
            await asyncio.to_thread(api.connect)
        except ConnectionRefusedError:
            # The file is there a moment before it is listened at, and of the latter nobody tells.
            await asyncio.sleep(_MOMENT)
        else:
            return


def _empty_network(held: AsyncExitStack) -> Path | None:
    """A network namespace without anything in it, for machines without network; it ends with us. None where only root could make it."""
    if os.geteuid() != 0:
        return None
    made: list[int] = []
    problems: list[OSError] = []

    def make() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
            problems.append(OSError(ctypes.get_errno(), "no network namespace can be made"))
        else:
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=make, name="agentenv-empty-network")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    held.callback(os.close, made[0])
    return Path(f"/proc/{os.getpid()}/fd/{made[0]}")
