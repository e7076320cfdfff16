"""Nodes for the tests: real ones on this machine's namespaces, and ones on a backend without walls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.node.doubles import OpenBackend
from tests.node.memory_doubles import DISK, RememberingBackend, machine

from agentenv.errors import BackendUnavailable
from agentenv.guest import Command, Connection
from agentenv.guest.processes import start
from agentenv.isolation import open_backend
from agentenv.node import Node, NodeSandbox, SandboxRequest

Run = Callable[[NodeSandbox, str], Awaitable[str]]


class Recorder:
    """Remembers the events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def emit(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))

    def named(self, event: str) -> list[dict[str, object]]:
        return [fields for name, fields in self.events if name == event]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def root_tree(tmp_path: Path) -> str:
    """The reference of an image that costs nothing to resolve."""
    (tmp_path / "tree" / "bin").mkdir(parents=True)
    return f"dir:{tmp_path}/tree"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> OpenBackend:
    """Every node that is opened in this test uses this backend without walls."""
    backend = OpenBackend()

    async def open_it(name: str, owner_dir: Path) -> OpenBackend:
        return backend

    monkeypatch.setattr("agentenv.node.starter.open_backend", open_it)
    return backend


@pytest.fixture
async def open_node(backend: OpenBackend, home: Path, recorder: Recorder) -> AsyncIterator[Node]:
    """A node on the backend without walls."""
    async with await Node.open(home, events=recorder) as node:
        yield node


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> bool:
    """Whether the machines have a disk instead of trees."""
    return bool(getattr(request, "param", False))


@pytest.fixture
def remembering(disk: bool, monkeypatch: pytest.MonkeyPatch) -> RememberingBackend:
    """Every node that is opened in this test uses this backend, which can write memory down."""
    backend = RememberingBackend(disk=disk)

    async def open_it(name: str, owner_dir: Path) -> RememberingBackend:
        return backend

    monkeypatch.setattr("agentenv.node.starter.open_backend", open_it)
    return backend


@pytest.fixture
async def memory_node(remembering: RememberingBackend, home: Path, recorder: Recorder) -> AsyncIterator[Node]:
    """A node on that backend."""
    async with await Node.open(home, events=recorder) as node:
        yield node


@pytest.fixture
async def holder(memory_node: Node, root_tree: str, disk: bool) -> NodeSandbox:
    """One with a file and something in its memory."""
    sandbox = await memory_node.create(SandboxRequest(image=root_tree))
    if disk:
        (machine(sandbox).spec.directory / "upper" / DISK).write_text("a file")
    else:
        machine(sandbox).write("file", "a file")
    machine(sandbox).memory = "one"
    return sandbox


@pytest.fixture
async def node(home: Path, tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A node on this machine's namespaces, whatever it has besides; the test is skipped where there are none."""
    monkeypatch.setattr("agentenv.isolation.registry.STRONGEST_FIRST", ("namespace",))
    probe = tmp_path / "probe"
    probe.mkdir()
    try:
        await (await open_backend("namespace", probe)).close()
    except BackendUnavailable as error:
        pytest.skip(f"no sandboxes here: {error.message}")
    async with await Node.open(home, events=recorder) as node:
        yield node


@pytest.fixture
def run() -> Run:
    """Runs a shell line in a sandbox and returns what it printed."""

    async def run(sandbox: NodeSandbox, line: str) -> str:
        connection = Connection.open(sandbox.machine.dial())
        try:
            process = start(connection, Command(shell=line))
            ended = await process.ended()
            assert ended.exit_code == 0, bytes(process.stderr).decode()
            return bytes(process.stdout).decode()
        finally:
            connection.close()

    return run
