"""What our driver of QEMU adds to the bare program: for a clone, for writing 128 MiB down, and for a pause.

Both contenders run the same guest, whose memory holds 128 MiB of random bytes. The reference is driven by nothing but a command line and a
QMP socket, as one does it by hand: memory in a shared file and `x-ignore-shared` for clones, a migration into a file for a checkpoint. Ours
is the driver as the node calls it, with cgroups, its own filter of system calls, and an agent that must answer; a reference's clone is done
when its processors run.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from agentenv.benchmarks.row import Row, Scale, Target, in_turn, latency_row, timed
from agentenv.benchmarks.workbench import Workbench
from agentenv.errors import BackendUnavailable, InfrastructureError
from agentenv.guest import Connection, files
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.contract import MachineSpec, Resources, RootFilesystem, Timeouts, Tree
from agentenv.isolation.qemu.backend import QemuBackend
from agentenv.isolation.qemu.machine import QemuMachine
from agentenv.isolation.qemu.probing import Qemu
from agentenv.isolation.vm import GuestConfig, GuestFiles, Platform, clone_disk, dial_serial, make_upper, prepare_guest
from agentenv.isolation.vm.disk import DISK

HELD_MIB = 128
GUEST_MIB = 512
_BOOT_SECONDS = 120.0
_DISK_BYTES = 64 << 20
_PORTS = 4


@dataclass
class Bench(Workbench):
    """A directory with a backend in it, a loop to drive it with, and the guest that both contenders run."""

    backend: QemuBackend
    store: ArtefactStore
    qemu: Qemu
    root: RootFilesystem
    guest: GuestFiles

    def spec(self, disk: Path | None = None) -> MachineSpec:
        """One to start, or to restore with a copy of `disk` in its place, as the node leaves it."""
        directory = self.new("m")
        if disk is not None:
            (directory / DISK).parent.mkdir()
            clone_disk(disk, directory / DISK)
        limits = Resources(memory=GUEST_MIB << 20, storage=_DISK_BYTES)
        return MachineSpec(directory.name, directory, self.root, "bench", limits, timeouts=Timeouts(startup=_BOOT_SECONDS))

    def parent(self) -> QemuMachine:
        """A machine of ours whose memory is full."""
        machine: QemuMachine = self.wait(self.backend.start(self.spec()))
        self.fill(machine.dial())
        return machine

    def fill(self, connection: socket.socket) -> None:
        """Has a guest hold random bytes in its memory; when it has them, it is told that it will be written down."""

        async def write() -> None:
            agent = Connection.open(connection)
            await files.write(agent, "/dev/shm/held", os.urandom(HELD_MIB << 20))
            await agent.call("freeze", seconds=3600.0)
            agent.close()

        self.wait(write())


@contextmanager
def bench() -> Iterator[Bench]:
    """Raises `BackendUnavailable` where QEMU cannot be used."""
    with tempfile.TemporaryDirectory(prefix="agentenv-bench-") as name, asyncio.Runner() as runner:
        owner = Path(name)
        for directory in ("proc", "sys", "dev", "tmp", "run", "etc", "root"):
            (owner / "tree" / directory).mkdir(parents=True)
        root = RootFilesystem((Tree("/", "@", (owner / "tree",)),), "bench")
        store = ArtefactStore.open()
        qemu = Qemu.find(store)
        backend = runner.run(QemuBackend.open(owner))
        try:
            if not (probe := backend.probe()).usable:
                raise BackendUnavailable(probe.reason or "QEMU cannot be used.", remedy=probe.remedy)
            guest = prepare_guest(root, store, transport="serial", elf=False)
            yield Bench(owner, runner.get_loop(), backend, store, qemu, root, guest)
        finally:
            runner.run(backend.close())


class Bare:
    """A QEMU without anything around it."""

    def __init__(self, here: Bench, *options: str, disk: Path | None = None) -> None:
        self.directory = here.new("bare")
        if disk is None:
            make_upper(self.directory / "disk.img", _DISK_BYTES, here.store)
        else:
            clone_disk(disk, self.directory / "disk.img")
        self._held = ExitStack()
        self._command = [*_command(here, self.directory), *options]

    def start(self) -> None:
        """Starts it, and returns when it takes commands."""
        ours, theirs = socket.socketpair()
        self._held.enter_context(ours)
        words = ["-chardev", f"socket,id=qmp,fd={theirs.fileno()}", "-mon", "chardev=qmp,mode=control"]
        with theirs:
            self.process = subprocess.Popen([*self._command, *words], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self._answers = self._held.enter_context(ours.makefile("r"))
        self._requests = self._held.enter_context(ours.makefile("w"))
        self._answers.readline()
        self.ask("qmp_capabilities")

    def dial(self) -> socket.socket:
        """A connection to the agent of one that boots."""
        while not (self.directory / "port1").exists():
            continue
        return dial_serial(self.directory / "port1", _BOOT_SECONDS)

    def ask(self, command: str, **arguments: object) -> Any:
        """One command and its answer."""
        self._requests.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._requests.flush()
        while True:
            told = json.loads(self._answers.readline())
            if "return" in told:
                return told["return"]
            if "error" in told:
                raise InfrastructureError(f"QEMU refused `{command}`: {told['error']['desc']}.")

    def ignore_shared(self) -> None:
        """Leaves memory in shared files out of migrations."""
        self.ask("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])

    def migrate(self, target: Path) -> None:
        """Writes it into a file, and returns when that is done."""
        self.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        self.ask("migrate", uri=f"exec:cat > {target}")
        while (told := self.ask("query-migrate"))["status"] != "completed":
            if told["status"] == "failed":
                raise InfrastructureError(f"QEMU's migration failed: {told}.")

    def end(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait()
        self._held.close()


def _command(here: Bench, directory: Path) -> list[str]:
    qemu, guest = here.qemu, here.guest
    platform = Platform.QEMU_KVM if qemu.accelerator == "kvm" else Platform.QEMU_TCG
    words = [str(qemu.program), "-M", "microvm,acpi=on,memory-backend=ram", "-accel", qemu.accelerator, "-cpu", qemu.cpu]
    words += ["-m", str(GUEST_MIB), "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "null"]
    words += ["-kernel", str(guest.kernel), "-initrd", str(guest.initrd)]
    words += ["-append", GuestConfig("bench", "serial").command_line(platform)]
    for name, file, more in (("root", guest.root.path, ",readonly=on"), ("upper", directory / "disk.img", "")):
        words += ["-drive", f"if=none,id={name},format=raw,file={file}{more}", "-device", f"virtio-blk-device,drive={name}"]
    words += ["-device", "virtio-balloon-device", "-device", "virtio-rng-device", "-device", "virtio-serial-device"]
    for number in range(1, _PORTS + 1):
        words += ["-chardev", f"socket,id=c{number},path={directory}/port{number},server=on,wait=off"]
        words += ["-device", f"virtserialport,chardev=c{number},nr={number}"]
    return words


def _shared(path: Path, *, share: bool) -> tuple[str, str]:
    return "-object", f"memory-backend-file,id=ram,size={GUEST_MIB}M,mem-path={path},share={'on' if share else 'off'}"


def run_fork(scale: Scale) -> Iterator[Row]:
    """A clone until its agent answers, beside a bare QEMU's until its processors run."""
    with bench() as here:
        machine = here.parent()
        written = _write_down(here, machine)
        here.wait(machine.kill())
        memory = here.directory / "shared"
        bare = Bare(here, *_shared(memory, share=True))
        bare.start()
        here.fill(bare.dial())
        bare.ask("stop")
        bare.ignore_shared()
        bare.migrate(here.directory / "state")
        bare.end()

        def ours() -> float:
            spec = here.spec(written / "disk.img")
            begin = perf_counter()
            clone = here.wait(here.backend.restore(spec, written / "memory"))
            seconds = perf_counter() - begin
            here.wait(clone.kill())
            return seconds

        def theirs() -> float:
            clone = Bare(here, *_shared(memory, share=False), "-incoming", "defer", disk=bare.directory / "disk.img")
            seconds = timed(lambda: _run_clone(clone, here.directory / "state"))
            clone.end()
            return seconds

        mine, others = in_turn(scale.count(20, 3), ours, theirs, warm_up=1)
    reference = "bare QEMU: clone of a shared memory file to running processors"
    yield latency_row("qemu-fork", mine, others, reference=reference, target=Target("ratio", "<=", 1.5))


def _run_clone(clone: Bare, state: Path) -> None:
    clone.start()
    clone.ignore_shared()
    clone.ask("migrate-incoming", uri=f"exec:cat {state}")
    while clone.ask("query-status")["status"] == "inmigrate":
        continue
    clone.ask("cont")


def run_checkpoint(scale: Scale) -> Iterator[Row]:
    """Writing a machine down whose memory holds 128 MiB, beside a bare QEMU's migration into a file."""
    with bench() as here:
        machine = here.parent()
        bare = Bare(here, "-object", f"memory-backend-ram,id=ram,size={GUEST_MIB}M")
        bare.start()
        here.fill(bare.dial())

        def ours() -> float:
            directory = here.new("checkpoint")
            seconds = timed(lambda: here.wait(_stand_still_and_write(machine, directory)))
            for path in directory.iterdir():
                path.unlink()
            return seconds

        def theirs() -> float:
            target = here.directory / "migrated"

            def write() -> None:
                bare.ask("stop")
                bare.migrate(target)
                bare.ask("cont")

            seconds = timed(write)
            target.unlink()
            return seconds

        mine, others = in_turn(scale.count(20, 3), ours, theirs, warm_up=1)
        bare.end()
    reference = "bare QEMU: stop, migrate to a file, cont"
    yield latency_row("qemu-checkpoint", mine, others, reference=reference, target=Target("ratio", "<=", 2.0))


def run_pause(scale: Scale) -> Iterator[Row]:
    """Pause and resume of a running machine, beside the bare commands."""
    with bench() as here:
        machine = here.wait(here.backend.start(here.spec()))
        bare = Bare(here, "-object", f"memory-backend-ram,id=ram,size={GUEST_MIB}M")
        bare.start()
        bare.dial().close()

        async def both() -> None:
            await machine.pause()
            await machine.resume()

        def both_bare() -> None:
            bare.ask("stop")
            bare.ask("cont")

        mine, others = in_turn(scale.count(100, 10), lambda: timed(lambda: here.wait(both())), lambda: timed(both_bare))
        bare.end()
    yield latency_row("qemu-pause", mine, others, reference="bare QEMU: stop, cont", target=None)


def _write_down(here: Bench, machine: QemuMachine) -> Path:
    place = here.new("written")
    (place / "memory").mkdir()

    async def write() -> None:
        await machine.pause()
        await machine.checkpoint(place / "memory")
        clone_disk(machine.directory / DISK, place / "disk.img")

    here.wait(write())
    return place


async def _stand_still_and_write(machine: QemuMachine, directory: Path) -> None:
    await machine.pause()
    await machine.checkpoint(directory)
    await machine.resume()
