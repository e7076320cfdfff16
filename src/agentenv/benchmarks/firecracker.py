"""What our driver of Firecracker adds to the bare calls: for a restore, for each child of a fork, and for a pause; in time and in memory.

The guest is the driver's tiny one, so that a KVM which only emulates will do: what is measured is the monitor and what is around it. Ours
is the backend as the node calls it, with its jailer, cgroups, an image and a disk; the reference is a script that starts Firecracker in a
directory where all files lie ready, asks it over its socket, and does nothing else. Between two samples the backend's pool is filled again,
which is not in its time.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from agentenv.benchmarks.row import Row, Scale, Target, in_turn, latency_row, machine, percentile, timed
from agentenv.benchmarks.workbench import Workbench
from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.contract import MachineSpec, RootFilesystem, Tree
from agentenv.isolation.firecracker.backend import FirecrackerBackend
from agentenv.isolation.firecracker.counter import count, write_kernel
from agentenv.isolation.firecracker.jail import MEMORY, ROOT, STATE, UPPER
from agentenv.isolation.firecracker.launcher import Launcher
from agentenv.isolation.firecracker.machine import FirecrackerMachine
from agentenv.isolation.firecracker.release import Programs
from agentenv.isolation.firecracker.settings import Settings
from agentenv.isolation.firecracker.vm import Boot, Vm
from agentenv.isolation.namespace.cgroups import CgroupTree
from agentenv.isolation.vm import root_image
from agentenv.isolation.vm.disk import DISK
from agentenv.isolation.vm.kvm import native_kvm

CHILDREN = 16
GUEST_MIB = 32
GUEST_PAGES = 1000
"""Pages of 4 KiB that the guest has touched when it is written down."""

_DISK_BYTES = 1 << 20
_LOOK_AGAIN = 0.0005
_AT_MOST = Target("ratio", "<=", 1.25)
_MIB = 1 << 20


@dataclass
class Bench(Workbench):
    """A directory with a backend in it, a loop to drive it with, and the image of its machines."""

    launcher: Launcher
    backend: FirecrackerBackend
    root: RootFilesystem
    image: Path

    def spec(self) -> MachineSpec:
        """One to restore, with its disk in its place, as the node leaves it."""
        directory = self.new("m")
        (directory / DISK).parent.mkdir()
        _make_disk(directory / DISK)
        return MachineSpec(directory.name, directory, self.root, "bench")

    def parent(self) -> FirecrackerMachine:
        """A machine whose guest counts."""
        spec = self.spec()

        async def boot() -> FirecrackerMachine:
            vmm = await self.launcher.launch()
            kernel = write_kernel(self.directory / "kernel", pages=GUEST_PAGES)
            boot = Boot(kernel, "", GUEST_MIB, drives={ROOT: self.image, UPPER: spec.directory / DISK}, image=self.image.name)
            vm = await Vm.boot(vmm, self.launcher.programs.release, boot)
            while count(vmm.monitor.output) is None:
                await vmm.monitor.more()
            return FirecrackerMachine(vm, spec, (), cores=1, settings=Settings(jailed=False), on_end=lambda machine: None)

        found: FirecrackerMachine = self.wait(boot())
        return found

    def checkpoint(self, parent: FirecrackerMachine) -> Path:
        """Of a machine that goes on."""
        directory = self.new("checkpoint")
        self.wait(_write_down(parent, directory))
        return directory


@contextmanager
def bench() -> Iterator[Bench]:
    """Raises `BackendUnavailable` where no machine can be made, or Firecracker or its jailer are missing."""
    if not (found := native_kvm()).usable:
        raise BackendUnavailable(f"no virtual machine can be made: {found.reason}", remedy=found.remedy)
    store, settings = ArtefactStore.open(), Settings.read()
    programs = Programs.find(store, jailed=settings.jailed)
    with tempfile.TemporaryDirectory(prefix="agentenv-bench-") as name, asyncio.Runner() as runner:
        owner = Path(name)
        (owner / "tree").mkdir()
        root = RootFilesystem((Tree("/", "@", (owner / "tree",)),), "bench")
        image = root_image(root, store.directory / "roots").path
        launcher = runner.run(Launcher.open(programs, CgroupTree.discover(), owner))
        backend = FirecrackerBackend(launcher, store, settings)
        try:
            yield Bench(owner, runner.get_loop(), launcher, backend, root, image)
        finally:
            runner.run(backend.close())


class Bare:
    """A Firecracker without anything around it, in a directory where it finds its files."""

    def __init__(self, here: Bench, files: dict[str, Path]) -> None:
        self.directory = here.new("bare")
        self._program = here.launcher.programs.firecracker
        self._held = ExitStack()
        _make_disk(self.directory / UPPER)
        for name, path in files.items():
            (self.directory / name).symlink_to(path)

    @classmethod
    def booted(cls, here: Bench) -> Bare:
        """One whose guest counts."""
        kernel = write_kernel(here.directory / "kernel", pages=GUEST_PAGES)
        bare = cls(here, {ROOT: here.image, "kernel": kernel})
        bare.spawn()
        bare.ask("PUT", "/machine-config", {"vcpu_count": 1, "mem_size_mib": GUEST_MIB, "track_dirty_pages": True})
        bare.ask("PUT", "/boot-source", {"kernel_image_path": "kernel", "boot_args": ""})
        for name, only_read in ((ROOT, True), (UPPER, False)):
            drive = {"drive_id": name[:4], "path_on_host": name, "is_root_device": False, "is_read_only": only_read}
            bare.ask("PUT", f"/drives/{name[:4]}", drive)
        bare.ask("PUT", "/actions", {"action_type": "InstanceStart"})
        return bare

    def spawn(self) -> None:
        """Starts it and connects."""
        null = subprocess.DEVNULL
        command = [str(self._program), "--api-sock", "api"]
        self.process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, cwd=self.directory)
        self._held.callback(self.process.wait)
        self._held.callback(self.process.kill)
        self._stream = self._held.enter_context(socket.socket(socket.AF_UNIX))
        while self._stream.connect_ex(str(self.directory / "api")):
            sleep(_LOOK_AGAIN)

    def ask(self, method: str, path: str, body: dict[str, Any]) -> None:
        """One request. Raises `InfrastructureError` unless it is done."""
        content = json.dumps(body)
        self._stream.sendall(f"{method} {path} HTTP/1.1\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode())
        answer = self._stream.recv(65536)
        if b" 204 " not in answer.split(b"\r\n")[0]:
            raise InfrastructureError(f"Firecracker answered {method} {path} with {answer.decode(errors='replace')}")

    def load(self, tracking: str) -> None:
        """Goes on from the state and memory that lie there."""
        backend = {"backend_type": "File", "backend_path": MEMORY}
        self.ask("PUT", "/snapshot/load", {"snapshot_path": STATE, "mem_backend": backend, "resume_vm": True, tracking: True})

    def turn(self, state: str) -> None:
        """Pauses or resumes it."""
        self.ask("PATCH", "/vm", {"state": state})

    def end(self) -> None:
        """Ends it and removes its directory."""
        self._held.close()
        shutil.rmtree(self.directory)


def run_restore(scale: Scale) -> Iterator[Row]:
    """From the request to the guest running, beside spawn and `PUT /snapshot/load`."""
    with bench() as here:
        parent = here.parent()
        checkpoint = here.checkpoint(parent)
        here.wait(parent.kill())

        def ours() -> float:
            spec = here.spec()
            begin = perf_counter()
            restored: FirecrackerMachine = here.wait(here.backend.restore(spec, checkpoint))
            seconds = perf_counter() - begin
            here.wait(restored.kill())
            here.wait(here.backend.warm())
            return seconds

        mine, others = in_turn(scale.count(100, 5), ours, lambda: _restore_bare(here, checkpoint))
    yield latency_row("firecracker-restore", mine, others, reference="spawn + PUT /snapshot/load", target=_AT_MOST)


def run_fork(scale: Scale) -> Iterator[Row]:
    """Per child of a fork into sixteen, beside one snapshot and sixteen bare restores; and what a child takes of the host's memory."""
    children = scale.count(CHILDREN, 4)
    with bench() as here:
        parent, bare = here.parent(), Bare.booted(here)
        sizes: list[float] = []
        bare_sizes: list[float] = []
        mine, others = in_turn(
            scale.count(10, 2),
            lambda: _fork(here, parent, children, sizes),
            lambda: _fork_bare(here, bare, children, bare_sizes),
            warm_up=1,
        )
        bare.end()
        here.wait(parent.kill())
    reference = f"PUT /snapshot/create + {children} times spawn and PUT /snapshot/load"
    yield latency_row("firecracker-fork", mine, others, reference=reference, target=_AT_MOST)
    yield _memory_row(sizes, bare_sizes)


def run_pause(scale: Scale) -> Iterator[Row]:
    """Pause and resume of a running machine, beside two `PATCH /vm`."""
    with bench() as here:
        parent, bare = here.parent(), Bare.booted(here)

        async def both() -> None:
            await parent.pause()
            await parent.resume()

        def both_bare() -> None:
            bare.turn("Paused")
            bare.turn("Resumed")

        mine, others = in_turn(scale.count(200, 5), lambda: timed(lambda: here.wait(both())), lambda: timed(both_bare))
        bare.end()
        here.wait(parent.kill())
    yield latency_row("firecracker-pause", mine, others, reference="PATCH /vm Paused, Resumed", target=None)


def _restore_bare(here: Bench, checkpoint: Path) -> float:
    bare = Bare(here, {ROOT: here.image, MEMORY: checkpoint / MEMORY, STATE: checkpoint / STATE})

    def restore() -> None:
        bare.spawn()
        bare.load(_tracking(here))

    seconds = timed(restore)
    bare.end()
    return seconds


def _fork(here: Bench, parent: FirecrackerMachine, children: int, sizes: list[float]) -> float:
    checkpoint, specs = here.new("checkpoint"), [here.spec() for _ in range(children)]
    machines: list[FirecrackerMachine] = []

    async def fork() -> None:
        await _write_down(parent, checkpoint)
        machines.extend(await asyncio.gather(*(here.backend.restore(spec, checkpoint) for spec in specs)))

    seconds = timed(lambda: here.wait(fork()))
    sizes.extend(_private_bytes(child.vm.vmm.monitor.pid) for child in machines)
    for child in machines:
        here.wait(child.kill())
    here.wait(here.backend.warm())
    shutil.rmtree(checkpoint)
    return seconds / children


def _fork_bare(here: Bench, parent: Bare, children: int, sizes: list[float]) -> float:
    files = {name: parent.directory / name for name in (ROOT, MEMORY, STATE)}
    machines = [Bare(here, files) for _ in range(children)]

    def fork() -> None:
        parent.turn("Paused")
        parent.ask("PUT", "/snapshot/create", {"snapshot_path": STATE, "mem_file_path": MEMORY, "snapshot_type": "Full"})
        parent.turn("Resumed")
        for child in machines:
            child.spawn()
            child.load(_tracking(here))

    seconds = timed(fork)
    sizes.extend(_private_bytes(child.process.pid) for child in machines)
    for child in machines:
        child.end()
    return seconds / children


def _memory_row(sizes: list[float], bare_sizes: list[float]) -> Row:
    mine, other = (percentile(values, 0.5) / _MIB for values in (sizes, bare_sizes))
    target = Target("value", "<=", 6.0)
    return Row(
        "firecracker-fork-memory",
        mine,
        "MiB",
        mine,
        percentile(sizes, 0.99) / _MIB,
        len(sizes),
        "private memory of a bare clone",
        other,
        mine / other,
        str(target),
        target.met(mine, None),
        machine(),
    )


def _private_bytes(pid: int) -> float:
    """What a process has for itself, the guest's dirty pages among it (proc(5), smaps_rollup)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(found) for found in re.findall(r"^Private_(?:Clean|Dirty): *(\d+) kB", text, re.MULTILINE)) * 1024


def _tracking(here: Bench) -> str:
    return "track_dirty_pages" if here.launcher.programs.release.tracks_by_new_name else "enable_diff_snapshots"


async def _write_down(parent: FirecrackerMachine, directory: Path) -> None:
    await parent.pause()
    await parent.checkpoint(directory)
    await parent.resume()


def _make_disk(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(_DISK_BYTES)
