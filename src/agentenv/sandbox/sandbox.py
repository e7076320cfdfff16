"""The user's handle on one sandbox."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentenv.egress.denials import Denial
from agentenv.egress.policy import EgressPolicy
from agentenv.errors import AgentEnvError, InfrastructureError, InvalidState, Stage
from agentenv.guest import dial as dial_agent
from agentenv.guest.errors import AgentFailure
from agentenv.isolation.contract import Capabilities, Resources, Timeouts, Usage
from agentenv.node import NetworkRequest, SandboxRequest
from agentenv.node.snapshots import Snapshot
from agentenv.node.templates import SCHEME
from agentenv.sandbox.commands import AsyncCommands
from agentenv.sandbox.files import AsyncFiles
from agentenv.sandbox.host import Host
from agentenv.sandbox.link import Link
from agentenv.sandbox.owners import Owner, host_of, infos, startup_of
from agentenv.sandbox.process_table import ProcessTable
from agentenv.sandbox.pty import AsyncPty
from agentenv.sandbox.results import SandboxInfo, Transfer
from agentenv.sandbox.runtime import default_node
from agentenv.sandbox.shell import AsyncShell
from agentenv.sandbox.startup import fitting, run_startup
from agentenv.sandbox.wishes import egress_policy, network_request, resources_of


class AsyncSandbox:
    """One isolated machine: `async with await AsyncSandbox.create() as sandbox: …`.

    It ends with `kill()`, with the `async with` block, with its lifetime, or with the process that made it. Everything but `kill` raises
    `SandboxDied` (or the limit that explains it) once it is dead, and `InvalidState` once it was ended on purpose.
    """

    def __init__(self, host: Host, node: Owner) -> None:
        self._host = host
        self._node = node
        self._link = Link(host)
        table = ProcessTable(self._link)
        self._commands = AsyncCommands(table)
        self._files = AsyncFiles(self._link)
        self._pty = AsyncPty(table)

    @classmethod
    async def create(
        cls,
        image: str | None = None,
        *,
        snapshot: str | Snapshot | None = None,
        memory: bool | None = None,
        isolation: str = "auto",
        resources: Resources | Mapping[str, Any] | None = None,
        network: bool | NetworkRequest | Mapping[str, Any] = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        timeouts: Timeouts | None = None,
        server: str | None = None,
        api_key: str | None = None,
        node: Owner | None = None,
    ) -> AsyncSandbox:
        """Starts a sandbox and returns when its agent answers.

        `image`: `host` (this machine's programs), `debian`, `REGISTRY/NAME:TAG`, `template:NAME`, `dir:PATH`, … (docs/images.md); None is
        the backend's own: `debian` for a virtual machine, else `host`. With `snapshot` (its name, id, or itself) it is the snapshot's. A
        template's start command runs, and is ready, when this returns.
        `memory`: whether the snapshot's processes go on; None is "where it holds them", False starts from its files only.
        `isolation`: a backend's name, or `auto` for the strongest usable. `resources`: limits, as `Resources` or a mapping such as
        `{"cpu": 2, "memory": "4GB"}`. `network`: False (loopback only), True, or a mapping as in a configuration (docs/network.md):
        `{"enabled": True, "ports": [8080], "allow_internet_access": False, "allow": ["example.org", "10.1.2.3:5432"]}`.
        `env` is every process's. `timeout`: the sandbox's lifetime in seconds (None: no end but this process's). `timeouts`: for its start
        and end. `server` and `api_key`: where it is made, by default what AGENTENV_SERVER and AGENTENV_API_KEY say, else this machine.
        `node`: the owner; by default this process's own.

        Raises `StartupTimeout`, `BackendUnavailable`, `NotFound`, `CapabilityError`, `ConfigError` and other `AgentEnvError`.
        """
        request = SandboxRequest(
            image=image,
            snapshot=snapshot.id if isinstance(snapshot, Snapshot) else snapshot,
            memory=memory,
            isolation=isolation,
            resources=resources_of(resources),
            network=network_request(network),
            env=dict(env or {}),
            metadata=dict(metadata or {}),
            lifetime=timeout,
            timeouts=timeouts or Timeouts(),
        )
        owner = node or await default_node(server, api_key)
        sandbox = cls(await owner.create(request), owner)
        if image is not None and image.startswith(SCHEME) and snapshot is None:
            await sandbox._start_template(image)
        return sandbox

    @classmethod
    async def connect(
        cls, sandbox_id: str, *, server: str | None = None, api_key: str | None = None, node: Owner | None = None
    ) -> AsyncSandbox:
        """A handle on a sandbox that there is already, also one of another process of this user. Raises `NotFound`.

        What changes the machine itself (pause, resize, snapshot, fork, …) is done by the process that owns it, which is asked; the children
        of a fork belong to that process too. One that is paused to the disk and whose process has ended becomes this process's.
        `server` and `api_key` are those of `create`.
        """
        owner = node or await default_node(server, api_key)
        return cls(await host_of(owner, sandbox_id), owner)

    @classmethod
    async def list(cls, *, server: str | None = None, api_key: str | None = None, node: Owner | None = None) -> list[SandboxInfo]:
        """Every sandbox of this AGENTENV_HOME, or of the key's tenant on a server, living or paused to the disk, the oldest first."""
        return await infos(node or await default_node(server, api_key))

    @property
    def id(self) -> str:
        """Its id: letters and digits, also its host name."""
        return self._host.id

    @property
    def commands(self) -> AsyncCommands:
        """Runs commands."""
        return self._commands

    @property
    def files(self) -> AsyncFiles:
        """Reads and writes files."""
        return self._files

    @property
    def pty(self) -> AsyncPty:
        """Opens terminals."""
        return self._pty

    @property
    def timings(self) -> tuple[Stage, ...]:
        """How long each stage of its start took."""
        return self._host.timings

    @property
    def generation(self) -> int:
        """1, and one more with each rollback and each return from the disk: connections belong to one generation."""
        return self._host.generation

    @property
    def state(self) -> str:
        """`running`, `paused`, `hibernated` (paused to the disk) or `dead`."""
        return self._host.state

    @property
    def capabilities(self) -> Capabilities:
        """What its backend can do with it on this machine: whether a snapshot can hold its memory, say."""
        return self._host.capabilities

    @property
    def metadata(self) -> dict[str, str]:
        """What its maker noted on it."""
        return dict(self._host.request.metadata)

    async def shell(self, *, cwd: str | None = None, envs: Mapping[str, str] | None = None, user: str | int | None = None) -> AsyncShell:
        """A persistent bash: directory, variables and functions stay from one `run` to the next.

        Raises `CapabilityError` without a bash.
        """
        shell = AsyncShell(self._link, cwd=cwd, envs=envs, user=user)
        await shell.start()
        return shell

    async def upload_dir(
        self, local_path: str | Path, path: str, *, exclude: Sequence[str] = (), user: str | int | None = None
    ) -> Transfer:
        """`files.upload_dir`: copies the content of a directory of this machine into one of the sandbox."""
        return await self._files.upload_dir(local_path, path, exclude=exclude, user=user)

    async def download_dir(
        self, path: str, local_path: str | Path, *, exclude: Sequence[str] = (), max_bytes: int | None = None
    ) -> Transfer:
        """`files.download_dir`: copies the content of a directory of the sandbox into one of this machine."""
        return await self._files.download_dir(path, local_path, exclude=exclude, max_bytes=max_bytes)

    async def dial(self, target: int | str) -> socket.socket:
        """A plain blocking socket into the sandbox: to a port of its loopback, or to the path of a unix socket in it (`@name`: abstract).

        Raises `ConnectionRefusedError` or `FileNotFoundError` where nobody listens, `SandboxDied`, `InvalidState`.
        """
        self._link.require_running()
        machine = self._host.machine
        try:
            return await asyncio.to_thread(dial_agent, machine.dial(), target, pass_descriptor=machine.passes_descriptors)
        except AgentFailure as failure:
            raise self._link.dial_fault(failure, target) from failure
        except InfrastructureError as error:
            raise await self._link.explain(error) from error

    async def get_host(self, port: int) -> str:
        """Where a port of the sandbox is reached from this machine, as `127.0.0.1:PORT`; a server may come to listen there later."""
        host, host_port = await self._host.host_port(port)
        return f"{host}:{host_port}"

    async def pause(self, *, to_disk: bool = False) -> None:
        """Freezes every process; memory and files stay. Nothing happens when it is paused already.

        With `to_disk` it is written to the disk and takes neither memory nor processors until `resume()`, also by another process after
        this one has ended (`connect(id)`). Its lifetime stands still meanwhile. Connections and command handles end. Raises
        `CapabilityError` where memory cannot be written down, `StorageFull`; then it goes on.
        """
        await self._host.pause(to_disk)
        if to_disk:
            self._link.disconnect(InvalidState(f"sandbox {self.id} was paused to the disk while this ran in it."))

    async def resume(self) -> None:
        """Lets a paused sandbox go on. Nothing happens when it runs already. Raises what a start raises where it comes from the disk."""
        await self._host.resume()

    async def resize(
        self,
        *,
        cpu: float | None = None,
        memory: int | str | None = None,
        pids: int | None = None,
        disk_read: int | str | None = None,
        disk_write: int | str | None = None,
        disk_iops: int | None = None,
    ) -> None:
        """Changes limits while it runs: `cpu` in cores, `memory` in bytes or as "2GB", rates in bytes a second or as "50MB/s".

        What is None stays. Raises `CapabilityError`.
        """
        wish = {"cpu": cpu, "memory": memory, "pids": pids, "disk_read": disk_read, "disk_write": disk_write, "disk_iops": disk_iops}
        await self._host.resize(resources_of({name: value for name, value in wish.items() if value is not None}, pids=None))

    async def snapshot(self, name: str | None = None, *, memory: bool | None = None) -> Snapshot:
        """Keeps it as it is now, for `create(snapshot=…)` and `rollback`. It goes on running.

        With `memory` its processes are kept too, with False only its files; None is with memory where that is possible, and
        `Snapshot.memory` then tells. Raises `CapabilityError`, `StorageFull`.
        """
        return await self._host.snapshot(name, memory)

    async def rollback(self, snapshot: str | Snapshot, *, memory: bool | None = None) -> None:
        """Puts it back to a snapshot; its id stays. Its processes are those of the snapshot, none where that holds files only.

        `memory` False goes back to the files of any snapshot. Connections and command handles end; `commands.connect(pid)` finds what goes
        on. Raises `NotFound`, `CapabilityError`.
        """
        await self._host.rollback(snapshot.id if isinstance(snapshot, Snapshot) else snapshot, memory)
        self._link.disconnect(InvalidState(f"sandbox {self.id} was rolled back while this ran in it."))

    async def fork(self, count: int = 1, *, memory: bool | None = None) -> Forked:
        """Starts `count` sandboxes that are what this one is now. For each that did not start, the list has the error.

        With `memory` (None: where that is possible) its processes go on in each of them, else they have its files only.
        Raises `CapabilityError`, `StorageFull`.
        """
        born = await self._host.fork(count, memory)
        return [one if isinstance(one, AgentEnvError) else type(self)(one, self._node) for one in born]

    async def metrics(self) -> Usage:
        """What it uses now: memory and storage in bytes, processor seconds, processes, pressure (0-100)."""
        return await self._host.usage()

    async def set_network(self, network: EgressPolicy | Mapping[str, Any]) -> None:
        """Changes what it may reach while it runs, as in `create`: `{"allow_internet_access": False, "allow": ["example.org"]}`.

        What is left out is as by default. Connections that are denied now end. A sandbox without a network is given one, where its backend
        can do that while it runs. Raises `ConfigError`, `InvalidState` where it cannot be.
        """
        await self._host.set_network(egress_policy(network))

    async def network_log(self) -> Sequence[Denial]:
        """What it was refused: the last 500 times, the oldest first. Raises `InvalidState` without a network."""
        return await self._host.network_log()

    async def set_timeout(self, timeout: float | None) -> None:
        """It ends `timeout` seconds from now, whatever was granted before; None is without end."""
        await self._host.set_lifetime(timeout)

    async def is_running(self) -> bool:
        """Whether it is neither dead nor paused."""
        return self._host.state == "running"

    async def get_info(self) -> SandboxInfo:
        """What its owner's journal tells of it. Raises `SandboxDied` or `InvalidState` once it is gone."""
        self._host.require_alive()
        for info in await infos(self._node):
            if info.id == self.id:
                return info
        raise InvalidState(f"sandbox {self.id} is gone.", remedy="Create another one.")

    async def kill(self) -> bool:
        """Ends it and frees all that it held; False when it had ended already. Works in every state."""
        alive = self._host.state != "dead"
        await self._host.kill()
        self._link.disconnect(InvalidState(f"sandbox {self.id} was ended while this ran in it."))
        return alive

    async def _start_template(self, reference: str) -> None:
        """Runs what the template's sandboxes run; where that fails, the sandbox ends."""
        try:
            startup = await startup_of(self._node, reference, self._host.request.snapshot)
            await run_startup(self._commands, fitting(startup, users=self.capabilities.users))
        except BaseException:
            await self.kill()
            raise

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


Forked = list[AsyncSandbox | AgentEnvError]
"""What a fork gives: for each child its handle, or why it did not start."""


def link_of(sandbox: AsyncSandbox) -> Link:
    """The connection behind a handle, for code that speaks to the agent itself; valid in the loop that the handle lives in."""
    return sandbox._link
