"""QEMU's own control channel, QMP, as far as we use it: each command typed, each fault an error of ours.

The protocol is spoken by the library `qemu.qmp`; the commands are those of QEMU's "QMP Reference Manual".
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qemu.qmp import EventListener, ExecInterruptedError, ExecuteError, QMPClient, QMPError
from qemu.qmp.protocol import Runstate, StateError

from agentenv.errors import InfrastructureError
from agentenv.isolation.qemu.command import THROTTLE, channel, port

PortChanged = Callable[[int, bool], None]
"""Told the number of a port, and whether the guest has it open now."""

_ANSWER_SECONDS = 30.0
_ADDRESS = re.compile(r"is (0x[0-9a-f]+)")


class Qmp:
    """The channel to one QEMU; made by `open`. `memory_changed` is set when the guest has given memory back, or taken it again."""

    def __init__(self, client: QMPClient, listener: EventListener, port_changed: PortChanged) -> None:
        self.memory_changed = asyncio.Event()
        self._client = client
        self._passing = asyncio.Lock()  # QEMU keeps only the descriptor that came last
        self._port_changed = port_changed
        self._listening = asyncio.ensure_future(self._listen(listener))

    @classmethod
    async def open(cls, connection: socket.socket, port_changed: PortChanged) -> Qmp:
        """Greets the QEMU at the other end of `connection`, which is taken over. Raises `InfrastructureError` when it has ended."""
        logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)  # what goes wrong is raised
        client = QMPClient()
        listener = EventListener()
        client.register_listener(listener)
        try:
            await client.connect(connection)
        except (QMPError, OSError) as error:
            raise InfrastructureError("QEMU ended before it took a command.") from error
        finally:
            # The library has made the descriptor its own, or failed.
            if client.runstate is not Runstate.RUNNING:
                connection.close()
        return cls(client, listener, port_changed)

    async def close(self) -> None:
        """Closes the channel; idempotent."""
        self._listening.cancel()
        try:
            await self._client.disconnect()
        except (EOFError, OSError, QMPError):
            return  # QEMU has ended, which closed it

    async def stop(self) -> None:
        """Stops the processors, and returns when everything that the guest has given to its disks is written."""
        await self._execute("stop")

    async def go_on(self) -> None:
        """Lets the processors run."""
        await self._execute("cont")

    async def save_devices(self, path: Path) -> None:
        """Writes the state of all devices of the stopped machine to a new file at `path`, its memory and its disks left out."""
        # Made for Xen, which keeps the memory itself, as we do: it works for memory that is mapped privately as well.
        await self._execute("xen-save-devices-state", {"filename": str(path), "live": False})

    async def memory_address(self) -> int:
        """Where in QEMU's own address space the guest's memory begins."""
        told = str(await self._execute("human-monitor-command", {"command-line": "gpa2hva 0"}))
        found = _ADDRESS.search(told)
        if found is None:
            raise InfrastructureError(f"QEMU does not tell where the memory of its machine lies: {told.strip()!r}.")
        return int(found[1], 16)

    async def plug_port(self, number: int, listener: socket.socket) -> None:
        """Gives the machine one more virtio-serial port, whose connections come to `listener`, of which QEMU has a copy then."""
        name = channel(number)
        async with self._passing:
            self._pass(listener)
            await self._execute("getfd", {"fdname": name})
        socket_backend = {"addr": {"type": "fd", "data": {"str": name}}, "server": True, "wait": False}
        await self._execute("chardev-add", {"id": name, "backend": {"type": "socket", "data": socket_backend}})
        await self._execute("device_add", {"driver": "virtserialport", "id": port(number), "nr": number, "chardev": name})

    async def set_memory(self, size: int) -> None:
        """Has the guest give memory back, or take it again, until it has `size` bytes: as fast as it can."""
        await self._execute("balloon", {"value": size})

    async def throttle(self, limits: Mapping[str, int]) -> None:
        """Holds the disks to `limits` (in the words of ThrottleLimits) and nothing else; they must have had a limit at the start."""
        value = {f"{kind}-{way}": 0 for kind in ("bps", "iops") for way in ("total", "read", "write")} | dict(limits)
        await self._execute("qom-set", {"path": f"/objects/{THROTTLE}", "property": "limits", "value": value})

    async def memory_size(self) -> int:
        """How many bytes the guest has at present."""
        told = await self._execute("query-balloon")
        assert isinstance(told, dict)
        return int(told["actual"])

    def _pass(self, listener: socket.socket) -> None:
        try:
            if self._client.runstate is Runstate.RUNNING:
                self._client.send_fd_scm(listener.fileno())
        except OSError as error:
            raise InfrastructureError("QEMU ended before it took a descriptor.") from error

    async def _execute(self, command: str, arguments: Mapping[str, Any] | None = None) -> object:
        """Raises `InfrastructureError` where QEMU refuses, has ended or does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._client.execute(command, dict(arguments) if arguments else None)
        except ExecuteError as error:
            raise InfrastructureError(f"QEMU refused `{command}`: {error}.") from error
        except (ExecInterruptedError, StateError) as error:
            raise InfrastructureError(f"QEMU ended instead of answering `{command}`.") from error
        except TimeoutError as error:
            raise InfrastructureError(f"QEMU did not answer `{command}` in {_ANSWER_SECONDS:g} s.") from error

    async def _listen(self, listener: EventListener) -> None:
        async for event in listener:
            data = event.get("data")
            if event["event"] == "VSERPORT_CHANGE" and isinstance(data, Mapping):
                self._port_changed(int(data["id"].removeprefix("port")), bool(data["open"]))
            elif event["event"] == "BALLOON_CHANGE":
                self.memory_changed.set()
