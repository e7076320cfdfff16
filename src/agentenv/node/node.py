"""A node: the owner of all sandboxes that one process starts on this machine."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from agentenv.errors import InvalidState, NotFound
from agentenv.images import ImageStore, default_image
from agentenv.images.oci import Credentials
from agentenv.images.reach import Reach
from agentenv.isolation.contract import RootFilesystem
from agentenv.monitoring import EventSink, JsonLinesSink, NullSink
from agentenv.monitoring.machine_log import open_machine_log
from agentenv.naming import near
from agentenv.node.blanks import Blanks
from agentenv.node.branching import Branching
from agentenv.node.capacity import Capacity, check_disk, disk_full
from agentenv.node.control import ControlServer
from agentenv.node.garbage import GarbageReport, collect
from agentenv.node.hibernated import HIBERNATED, HibernatedStore
from agentenv.node.hibernating import Hibernating
from agentenv.node.home import Home
from agentenv.node.keeping import Keeping
from agentenv.node.killing import kill_from_outside
from agentenv.node.layers import LayerStore
from agentenv.node.lifetime import check_lifetime
from agentenv.node.network import NetworkPool
from agentenv.node.origin import Origin
from agentenv.node.owner import Owner, live_records
from agentenv.node.reconcile import reconcile
from agentenv.node.records import SandboxRecord, SandboxRequest
from agentenv.node.salvage import FACT, Salvage, Wish
from agentenv.node.sandbox import NodeSandbox
from agentenv.node.snapshots import Defaults, Snapshot, SnapshotTree
from agentenv.node.spares import Spares
from agentenv.node.starter import Backends, Order, Starter
from agentenv.node.storage import StorageWatch
from agentenv.node.surroundings import Surroundings
from agentenv.node.taking import Taking
from agentenv.node.templates import SCHEME, Templates, from_template
from agentenv.node.trash import Trash


class Node:
    """Owns the sandboxes that this process starts in one AGENTENV_HOME. Belongs to the event loop in which it was opened.

    When the process ends, however it ends, its sandboxes end too; the next node of any process frees what a crash left.
    """

    def __init__(self, home: Home, owner: Owner, events: EventSink, reach: Reach) -> None:
        self.home = home.path
        self.reach = reach
        self.events = events
        self.owner = owner
        self._home = home
        self.templates = Templates(home.path)
        self._capacity = Capacity.of_this_machine()
        self._trash = Trash(owner, events)
        self._tree = SnapshotTree(home.snapshots)
        self._resting = resting = HibernatedStore(home.snapshots / "hibernated")
        tree = self._tree
        self._images = ImageStore(home.path, pinned=lambda: {**tree.needed_images(), **resting.needed_images()}, reach=reach)
        self._resolved: dict[str, asyncio.Task[RootFilesystem]] = {}
        self._layers = LayerStore(home.snapshots / "layers", lambda: tree.needed_layers() | resting.needed_layers(), self._trash.discard)
        self._memories = LayerStore(
            home.snapshots / "memory", lambda: tree.needed_memories() | resting.needed_memories(), self._trash.discard
        )
        self._backends = Backends(owner)
        self._network = NetworkPool(home.path, owner.id, events=events)
        self._spares = Spares(owner)
        self._storage = StorageWatch()
        self._control = ControlServer(self.get)
        self._blanks = Blanks(home.snapshots / "blanks", owner.staging, self._trash.discard, events)
        self._starter = Starter(owner, self._backends, self._network, self._spares, self._blanks, self._trash)
        self._branching = Branching(
            self._tree,
            self._layers,
            self._memories,
            Taking(owner, self._memories, self._trash, events),
            Keeping(self._layers, self._memories, self._trash),
            self._starter,
            self._image,
            lambda request, origin: self._launch(request, origin),
        )
        self._hibernating = Hibernating(resting, self._branching)
        self._salvage = Salvage(owner, self._tree, self._layers, self._trash, self._image, events)
        self._around = Surroundings(owner.journal, events, self._capacity, self._branching, self._hibernating, self._storage, self._forget)
        self._sandboxes: dict[str, NodeSandbox] = {}
        self._starting: set[asyncio.Future[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._log: JsonLinesSink | NullSink | None = None

    @classmethod
    async def open(
        cls, home: Path | None = None, *, events: EventSink | None = None, keeper: bool = False, reach: Reach | None = None
    ) -> Node:
        """A node in `home` (by default the AGENTENV_HOME of this user); frees what dead owners left there.

        What happens goes to `events`, by default to the log that all nodes of this home share (`agentenv.monitoring.machine_log`).
        `keeper` says that this process exists for its sandboxes only. `reach` is how far images and files of builds are fetched from, by
        default anywhere. Raises `InfrastructureError` when the directory cannot be used.
        """
        place = await asyncio.to_thread(Home.open, home)
        owner = await asyncio.to_thread(Owner.register, place, keeper=keeper)
        log = None if events else open_machine_log(place.path)
        node = cls(place, owner, events or log or NullSink(), reach or Reach())
        node._log = log
        try:
            await node._control.open(owner.directory)
            dead = await reconcile(place, owner.directory / "trash", node._salvage.keep)
            node.events.emit("node.opened", owner=owner.id, home=str(place.path), reconciled=dead)
            if dead:
                await node.collect_garbage()
        except BaseException:
            await node.close()
            raise
        return node

    @property
    def scratch(self) -> Path:
        """Where files lie for the moment, below AGENTENV_HOME; what a crash leaves there goes with this owner."""
        return self.owner.directory / "staging"

    async def create(self, request: SandboxRequest) -> NodeSandbox:
        """Starts a sandbox; on any failure nothing of it is left.

        Raises `CapabilityError` for limits that this machine does not have, `NotFound` for an unknown image, template or snapshot,
        `StartupTimeout`, `StorageFull` and other `InfrastructureError`.
        """
        if request.image is not None and request.image.startswith(SCHEME) and request.snapshot is None:
            request = from_template(request, await asyncio.to_thread(self.templates.find, request.image))
        self._capacity.check(request.resources)
        with self._starts():
            if request.snapshot is not None:
                return await self._launch(*await self._branching.begin(request))
            image = request.image or await self._default_image(request.isolation)
            return await self._launch(replace(request, image=image), Origin(await self._image(image), self._layers.use(())))

    async def snapshots(self) -> list[Snapshot]:
        """Every snapshot in this AGENTENV_HOME, the oldest first, so a parent before its children."""
        return await asyncio.to_thread(self._tree.all)

    async def image(self, reference: str, login: Credentials | None = None) -> RootFilesystem:
        """The root file system that an image's reference means, made or pulled first where it has to be. Raises what `create` raises.

        What a name means is looked up anew, since another process may have pulled a newer one. With a `login`, a registry's image is asked
        for as that user, and no name means it afterwards.
        """
        if login is not None:
            return await asyncio.to_thread(self._images.pull_as, login, reference)
        self._resolved.pop(reference, None)
        return await self._image(reference)

    async def prepare(self, image: str, isolation: str) -> None:
        """Makes ready what the first sandbox of that kind would wait for: its image and its backend. Raises what `create` raises."""
        with self._starts():
            await self._image(image)
            await self._backends.capabilities(await self._backends.get(isolation))

    async def derive_snapshot(self, parent: str, defaults: Defaults, metadata: Mapping[str, str], name: str | None = None) -> Snapshot:
        """A snapshot with the same files as `parent` and other defaults. Raises `NotFound`, `InvalidState` when the name is taken."""
        return await asyncio.to_thread(self._tree.derive, parent, defaults, metadata, name)

    async def delete_snapshot(self, name_or_id: str) -> None:
        """Deletes a snapshot; layers that live sandboxes use stay until those end.

        Raises `NotFound`, or `InvalidState` while it has children or a template of this AGENTENV_HOME is made of it.
        """
        wanted = self._tree.find(name_or_id)
        template = (await asyncio.to_thread(self.templates.needed_snapshots)).get(wanted.id)
        if template is not None:
            remedy = f"Remove the template first: `agentenv template rm {template}`."
            raise InvalidState(f"snapshot {wanted.label} is what template {template} is made of.", remedy=remedy)
        snapshot = await self._branching.delete(wanted.id)
        self.events.emit("snapshot.deleted", id=snapshot.id, name=snapshot.name)

    async def collect_garbage(self) -> GarbageReport:
        """Removes layers and memories without snapshot or sandbox, outdated bottom layers of `host`, and what dead owners left."""
        report = await collect(self._home, self.owner, (self._layers, self._memories, self._blanks.store), self._images, self._salvage.keep)
        await self._trash.empty()
        self.events.emit("node.garbage_collected", layers=report.layers, bytes=report.bytes, images=report.images, owners=report.owners)
        return report

    async def kill(self, identifier: str) -> None:
        """Ends any sandbox in this AGENTENV_HOME, also one of another process, which learns of it; raises `NotFound`."""
        if identifier in self._sandboxes:
            await self._sandboxes[identifier].kill()
            return
        record = self._find_record(identifier)
        if record.state == HIBERNATED:
            self._hibernating.forget(identifier)
        else:
            await kill_from_outside(record)

    async def close(self) -> None:
        """Ends every sandbox and frees everything, also when the caller is cancelled meanwhile; idempotent."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def wait_until_empty(self) -> None:
        """Returns when no sandbox of this node is left but those paused to the disk, those forked meanwhile included."""
        while awake := [sandbox for sandbox in self._sandboxes.values() if sandbox.state != HIBERNATED]:
            await awake[0].wait_until_at_rest()
            # Whoever asked for that waits for the answer, and may ask for more.
            await self._control.drain()

    def get(self, identifier: str) -> NodeSandbox:
        """The sandbox of this node with that id; raises `NotFound`."""
        try:
            return self._sandboxes[identifier]
        except KeyError:
            raise NotFound(
                f"there is no sandbox {identifier!r} in this process.", remedy="`agentenv ls` shows those that there are."
            ) from None

    def adopt(self, identifier: str) -> NodeSandbox:
        """Takes a sandbox over that is paused to the disk and whose process has ended. Raises `NotFound`."""
        self._require_open()
        if identifier not in self._sandboxes:
            self._sandboxes[identifier] = self._hibernating.adopt(identifier, self._around)
        return self._sandboxes[identifier]

    def salvage_at_death(self, identifier: str, metadata: Mapping[str, str] | None) -> None:
        """Has the sandbox's files kept, as a snapshot with that metadata, by whoever clears up after this process if it dies; None: not.

        A sandbox that has ended before leaves nothing. Raises `NotFound`.
        """
        request = self.get(identifier).request
        wish = None if metadata is None else msgspec.to_builtins(Wish(metadata, request.resources, request.env))
        try:
            self.owner.journal.record(identifier, **{FACT: wish})
        except OSError as error:
            self.events.emit("node.journal_failed", id=identifier, error=str(error))

    def list(self) -> list[SandboxRecord]:
        """Every sandbox in this AGENTENV_HOME that lives or is paused to the disk, of all processes, the oldest first."""
        found = {record.id: record for record in self._resting.records()}
        for record in live_records(self._home):
            # Who paused it to the disk may not know yet that another process has let it go on, or ended it.
            if record.state != HIBERNATED or record.id in found:
                found[record.id] = record
        return sorted(found.values(), key=lambda record: (record.created, record.id))

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _image(self, reference: str) -> RootFilesystem:
        """Made once, however many ask at once: all who waited in threads of their own would leave none for anything else."""
        known = self._resolved.get(reference)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            known = self._resolved[reference] = asyncio.create_task(asyncio.to_thread(self._images.resolve, reference))
        return await asyncio.shield(known)

    async def _default_image(self, isolation: str) -> str:
        """The image of a sandbox for which none was named, which depends on the backend that it comes to."""
        backend = await self._backends.get(isolation)
        return default_image(disk=(await self._backends.capabilities(backend)).disk_image)

    @contextmanager
    def _starts(self) -> Iterator[None]:
        """`close` waits until what is started within is there or has failed. Raises `InvalidState` once it has been called."""
        self._require_open()
        done = asyncio.get_running_loop().create_future()
        self._starting.add(done)
        try:
            yield
        finally:
            self._starting.discard(done)
            done.set_result(None)

    async def _launch(self, request: SandboxRequest, origin: Origin) -> NodeSandbox:
        identifier = new_id()
        try:
            with self._starts():
                self._announce(identifier, request)
                running = await self._starter.start(Order(identifier, identifier, request, origin))
                sandbox = self._sandboxes[identifier] = NodeSandbox(identifier, request, origin, running, self._around)
        except BaseException as error:
            self.owner.journal.forget(identifier)
            origin.release()
            self.events.emit("sandbox.start_failed", id=identifier, image=request.image, error=str(error))
            raise
        stages = {stage.name: stage.seconds for stage in sandbox.timings}
        self.events.emit(
            "sandbox.created", id=identifier, image=request.image, backend=sandbox.backend, memory=origin.memory is not None, stages=stages
        )
        return sandbox

    def _announce(self, identifier: str, request: SandboxRequest) -> None:
        """Checks what can be checked before anything is made, and writes down that something will be."""
        check_lifetime(request.lifetime)
        check_disk(identifier, self.home)
        try:
            self.owner.journal.record(identifier, state="creating", image=request.image)
        except OSError as error:
            raise disk_full(identifier, self.home) from error

    def _find_record(self, identifier: str) -> SandboxRecord:
        records = self.list()
        for record in records:
            if record.id == identifier:
                return record
        meant = near(identifier, [record.id for record in records])
        remedy = f"Did you mean {meant!r}?" if meant else "`agentenv ls` shows those that there are."
        raise NotFound(f"there is no sandbox {identifier!r}.", remedy=remedy)

    def _require_open(self) -> None:
        if self._closing is not None:
            raise InvalidState("this node is closed.", remedy="Open another one.")

    def _forget(self, identifier: str) -> None:
        self._sandboxes.pop(identifier, None)

    async def _close(self) -> None:
        await self._control.close()
        if self._starting:
            await asyncio.wait(self._starting)
        ends = [sandbox.begin_end("its node was closed", leave=True) for sandbox in self._sandboxes.values()]
        results = await asyncio.gather(*ends, return_exceptions=True)
        await self._backends.close()
        await self._network.close()
        await self._storage.close()
        await self._spares.close()
        await self._trash.drain()
        self._images.close()
        await asyncio.to_thread(self.owner.close)
        self.events.emit("node.closed", owner=self.owner.id)
        if self._log is not None:
            self._log.close()
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]


def new_id() -> str:
    """A fresh sandbox id: letters and digits only, valid as a host name and as part of a cgroup's name."""
    return "sb" + base64.b32encode(secrets.token_bytes(10))[:12].decode().lower()
