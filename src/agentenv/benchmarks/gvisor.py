"""What our driver of gVisor adds to the bare calls of `runsc`: for a start, for each child of a fork, and for a pause.

The driver is called without a node around it, as the reference is. In its time are the overlays, the bundle, the cgroup and the limits; the
reference finds everything mounted and has no limits. A start is over for both when the program in the sandbox has said its first byte.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from agentenv.benchmarks.row import Row, Scale, Target, in_turn, latency_row, timed
from agentenv.benchmarks.workbench import Workbench
from agentenv.guest import Command, Connection
from agentenv.guest.frames import Kind, encode
from agentenv.guest.processes import start as start_process
from agentenv.isolation.contract import MachineSpec, Resources, RootFilesystem, Tree
from agentenv.isolation.gvisor import bundle as bundles
from agentenv.isolation.gvisor import mounts
from agentenv.isolation.gvisor.backend import GvisorBackend
from agentenv.isolation.gvisor.machine import GvisorMachine
from agentenv.isolation.gvisor.runsc import Runsc

MEGABYTES = 100
CHILDREN = 4
_PROGRAM = f"import os, time; held = os.urandom({MEGABYTES * 1_000_000}); open('/root/ready', 'w').close(); time.sleep(1000)"
HOLD = ("/usr/bin/python3", "-c", _PROGRAM)
_AT_MOST = Target("ratio", "<=", 1.2)


@dataclass
class Bench(Workbench):
    """A directory with a backend in it and an event loop to drive it with; `private` is a thread with mounts of its own."""

    backend: GvisorBackend
    private: ThreadPoolExecutor

    def spec(self) -> MachineSpec:
        """What both contenders start: the machine's /usr under an overlay of its own, over a root of links into it."""
        directory = self.new("b")
        trees = (Tree("/", "root", (self.directory / "base",)), Tree("/usr", "usr", (Path("/usr"),)))
        return MachineSpec(directory.name, directory, RootFilesystem(trees, "bench"), "bench", Resources())

    def start(self) -> GvisorMachine:
        """A machine of ours."""
        machine: GvisorMachine = self.wait(self.backend.start(self.spec()))
        return machine

    def end(self, machine: GvisorMachine) -> None:
        """Ends it, to the last."""
        self.wait(machine.kill())
        self.wait(machine.freed())


@contextmanager
def bench() -> Iterator[Bench]:
    """Raises `BackendUnavailable` where gVisor cannot be used."""
    with tempfile.TemporaryDirectory(prefix="agentenv-bench-") as name, asyncio.Runner() as runner:
        owner = Path(name)
        base = owner / "base"
        for directory in ("proc", "sys", "dev", "tmp", "run", "usr", "etc", "root"):
            (base / directory).mkdir(parents=True)
        for link in ("bin", "lib", "lib64", "sbin"):
            (base / link).symlink_to(f"usr/{link}")
        backend = runner.run(GvisorBackend.open(owner))
        try:
            with ThreadPoolExecutor(1, initializer=mounts.enter_private_namespace) as private:
                yield Bench(owner, runner.get_loop(), backend, private)
        finally:
            runner.run(backend.close())


class Bare:
    """The same sandbox by nothing but runsc, with its overlays mounted before, and its agent spoken to without a switchboard."""

    def __init__(self, here: Bench) -> None:
        self.spec = here.spec()
        self.bundle = bundles.write(self.spec)
        self._private = here.private
        self._runsc = Runsc.find()
        self._held = ExitStack()
        self.stream, self._theirs = (self._held.enter_context(end) for end in socket.socketpair())
        for tree in self.spec.root.trees:
            places = self.bundle.upper(tree), self.bundle.work(tree), self.bundle.mount_point(tree)
            self._private.submit(mounts.mount_overlay, tree, *places).result()

    def call(self, *words: str) -> None:
        """One call of runsc on it."""
        command = self._runsc.command(self.bundle.state, *words)
        null = subprocess.DEVNULL
        calling = self._private.submit(subprocess.run, command, stdin=self._theirs.fileno(), stdout=null, stderr=null, cwd="/", check=True)
        calling.result()

    def run(self) -> None:
        """Starts it and waits for the first byte of what its agent says."""
        self.call("run", "--detach", f"--bundle={self.bundle.directory}", self.spec.id)
        self.stream.recv(1)

    def restore(self, checkpoint: Path) -> None:
        """Starts it from a checkpoint, and waits for the first byte as well."""
        self.stream.sendall(encode(0, Kind.CANCEL))
        self.call("restore", "--detach", f"--image-path={checkpoint}", f"--bundle={self.bundle.directory}", self.spec.id)
        self.stream.recv(1)

    def end(self) -> None:
        """Ends it; its mounts end with the benchmark."""
        self.call("delete", "--force", self.spec.id)
        self._held.close()


def run_start(scale: Scale) -> Iterator[Row]:
    """A start, beside `runsc run --detach` and the wait for the first byte."""
    with bench() as here:

        def ours() -> float:
            begin = perf_counter()
            machine = here.start()
            seconds = perf_counter() - begin
            here.end(machine)
            return seconds

        def theirs() -> float:
            bare = Bare(here)
            seconds = timed(bare.run)
            bare.end()
            return seconds

        mine, others = in_turn(scale.count(30, 5), ours, theirs, warm_up=1)
    yield latency_row("gvisor-start", mine, others, reference="runsc run --detach, to the first byte", target=_AT_MOST)


def run_fork(scale: Scale) -> Iterator[Row]:
    """Per child of a fork into four of a sandbox whose process holds 100 MB, beside `runsc checkpoint` and four `runsc restore`."""
    with bench() as here:
        machine = here.start()
        here.wait(_hold_memory(machine))
        bare = Bare(here)
        bare.run()
        bare.stream.sendall(encode(1, Kind.OPEN, {"op": "exec", "argv": list(HOLD), "keep": True}))
        for directory in (machine.directory, bare.bundle.machine):
            while not (directory / "upper/root/root/ready").exists():
                continue
        mine, others = in_turn(scale.count(10, 3), lambda: _fork(here, machine), lambda: _fork_bare(here, bare), warm_up=1)
        bare.end()
    reference = f"runsc checkpoint + {CHILDREN} runsc restore"
    yield latency_row("gvisor-fork", mine, others, reference=reference, target=_AT_MOST)


def run_pause(scale: Scale) -> Iterator[Row]:
    """Pause and resume of a running sandbox, beside `runsc pause` and `runsc resume`."""
    with bench() as here:
        machine = here.start()
        bare = Bare(here)
        bare.run()

        async def both() -> None:
            await machine.pause()
            await machine.resume()

        def both_bare() -> None:
            bare.call("pause", bare.spec.id)
            bare.call("resume", bare.spec.id)

        mine, others = in_turn(scale.count(50, 5), lambda: timed(lambda: here.wait(both())), lambda: timed(both_bare))
        bare.end()
    yield latency_row("gvisor-pause", mine, others, reference="runsc pause, runsc resume", target=None)


async def _hold_memory(machine: GvisorMachine) -> None:
    agent = Connection.open(machine.dial())
    await start_process(agent, Command(argv=HOLD, keep=True)).started()
    agent.close()


def _fork(here: Bench, machine: GvisorMachine) -> float:
    children: list[GvisorMachine] = []
    checkpoint = here.directory / "checkpoint"
    checkpoint.mkdir()

    async def fork() -> None:
        await machine.pause()
        await machine.checkpoint(checkpoint)
        await machine.resume()
        for spec in specs:
            children.append(await here.backend.restore(spec, checkpoint))

    specs = [here.spec() for _ in range(CHILDREN)]
    seconds = timed(lambda: here.wait(fork()))
    for child in children:
        here.end(child)
    shutil.rmtree(checkpoint)
    return seconds / CHILDREN


def _fork_bare(here: Bench, parent: Bare) -> float:
    checkpoint = here.directory / "checkpoint"
    checkpoint.mkdir()
    children = [Bare(here) for _ in range(CHILDREN)]

    def fork() -> None:
        parent.call("checkpoint", "--compression=none", "--leave-running", f"--image-path={checkpoint}", parent.spec.id)
        for child in children:
            child.restore(checkpoint)

    seconds = timed(fork)
    for child in children:
        child.end()
    shutil.rmtree(checkpoint)
    return seconds / CHILDREN
