"""A node: the owner of all sandboxes that one process starts on this machine."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

from agentenv.errors import InvalidState, NotFound
from agentenv.images import ImageStore
from agentenv.isolation.contract import RootFilesystem
from agentenv.monitoring import EventSink, NullSink
from agentenv.node.capacity import Capacity, check_disk
from agentenv.node.home import Home
from agentenv.node.layers import LayerStore
from agentenv.node.owner import Owner, live_records
from agentenv.node.records import SandboxRecord, SandboxRequest
from agentenv.node.sandbox import NodeSandbox, Origin, Surroundings
from agentenv.node.starter import Backends, Order, Starter
from agentenv.node.trash import Trash

ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


class Node:
    """Owns the sandboxes that this process starts in one AGENTENV_HOME. Belongs to the event loop in which it was opened.

    When the process ends, however it ends, its sandboxes end too; the next node of any process frees what a crash left.
    """

    def __init__(self, home: Home, owner: Owner, events: EventSink) -> None:
        self.home = home.path
        self.events = events
        self.owner = owner
        self._home = home
        self._capacity = Capacity.of_this_machine()
        self._trash = Trash(owner, events)
        self._images = ImageStore(home.path)
        self._resolved: dict[str, RootFilesystem] = {}
        self._layers = LayerStore(home.snapshots / "layers", frozenset, self._trash.discard)
        self._backends = Backends(owner)
        self._starter = Starter(owner, self._backends, self._trash)
        self._sandboxes: dict[str, NodeSandbox] = {}
        self._starting: set[asyncio.Task[object]] = set()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, home: Path | None = None, *, events: EventSink | None = None) -> Node:
        """A node in `home` (by default the AGENTENV_HOME of this user); frees what dead owners left there.

        Raises `InfrastructureError` when the directory cannot be used.
        """
        place = await asyncio.to_thread(Home.open, home)
        owner = await asyncio.to_thread(Owner.register, place)
        node = cls(place, owner, events or NullSink())
        node.events.emit("node.opened", owner=owner.id, home=str(place.path))
        return node

    async def create(self, request: SandboxRequest) -> NodeSandbox:
        """Starts a sandbox; on any failure nothing of it is left.

        Raises `CapabilityError` for limits that this machine does not have, `NotFound` for an unknown image or snapshot,
        `StartupTimeout`, `StorageFull` and other `InfrastructureError`.
        """
        self._capacity.check(request.resources)
        identifier = new_id()
        order = Order(identifier, identifier, request, await self._image(request.image))
        return await self._launch(order, Origin(order.image, self._layers.use(())))

    async def close(self) -> None:
        """Ends every sandbox and frees everything, also when the caller is cancelled meanwhile; idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    def get(self, identifier: str) -> NodeSandbox:
        """The sandbox of this node with that id; raises `NotFound`."""
        try:
            return self._sandboxes[identifier]
        except KeyError:
            raise NotFound(
                f"there is no sandbox {identifier!r} in this process.", remedy="`agentenv ls` shows those that there are."
            ) from None

    def list(self) -> list[SandboxRecord]:
        """Every live sandbox in this AGENTENV_HOME, of all processes, the oldest first."""
        return live_records(self._home)

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _image(self, reference: str) -> RootFilesystem:
        if reference not in self._resolved:
            self._resolved[reference] = await asyncio.to_thread(self._images.resolve, reference)
        return self._resolved[reference]

    async def _launch(self, order: Order, origin: Origin) -> NodeSandbox:
        task = asyncio.current_task()
        assert task is not None
        self._starting.add(task)
        try:
            self._require_open()
            check_disk(order.id, self.home)
            self.owner.journal.record(order.id, state="creating", image=order.request.image)
            try:
                running = await self._starter.start(order)
            except BaseException:
                self.owner.journal.forget(order.id)
                raise
            surroundings = Surroundings(self.owner.journal, self.events, self._capacity, self._forget)
            sandbox = NodeSandbox(order.id, order.request, origin, running, surroundings)
            self._sandboxes[order.id] = sandbox
            if self._closing is not None:
                await sandbox.kill("the node was closed while it started")
                self._require_open()
        except BaseException:
            origin.layers.release()
            raise
        finally:
            self._starting.discard(task)
        self.events.emit(
            "sandbox.created",
            id=sandbox.id,
            image=order.request.image,
            backend=sandbox.backend,
            stages={stage.name: stage.seconds for stage in sandbox.timings},
        )
        return sandbox

    def _require_open(self) -> None:
        if self._closing is not None:
            raise InvalidState("this node is closed.", remedy="Open another one.")

    def _forget(self, identifier: str) -> None:
        self._sandboxes.pop(identifier, None)

    async def _close(self) -> None:
        if self._starting:
            await asyncio.wait(self._starting)
        ends = [sandbox.begin_end("its node was closed") for sandbox in self._sandboxes.values()]
        results = await asyncio.gather(*ends, return_exceptions=True)
        await self._backends.close()
        await self._trash.drain()
        self._images.close()
        await asyncio.to_thread(self.owner.close)
        self.events.emit("node.closed", owner=self.owner.id)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]


def new_id() -> str:
    """A fresh sandbox id: letters and digits only, valid as a host name and as part of a cgroup's name."""
    return "sb" + "".join(secrets.choice(ALPHABET) for _ in range(10))
