"""Starting, limiting, pausing and ending sandboxes with a kernel of their own, and every way in which a start can fail."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.isolation.gvisor.sandboxes import NOTHING, GvisorYard
from tests.isolation.sandboxes import MIB, open_descriptors, shell

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, SandboxDied, StartupTimeout
from agentenv.guest import Command, Connection, dial, files
from agentenv.guest.frames import Kind
from agentenv.guest.processes import start as start_process
from agentenv.isolation.contract import Checkpointing, Machine, Resources, Restoring, Timeouts, Tree
from agentenv.isolation.gvisor import backend as backend_module
from agentenv.isolation.gvisor import bundle, control, mounts
from agentenv.isolation.gvisor.machine import GvisorMachine
from agentenv.isolation.gvisor.switchboard import Switchboard
from agentenv.isolation.namespace import endpoint
from agentenv.isolation.namespace.cgroups import Cgroup, CgroupTree


async def test_it_is_a_machine_with_a_kernel_of_its_own(yard: GvisorYard, machine: GvisorMachine) -> None:
    assert isinstance(machine, Machine)
    assert isinstance(machine, Checkpointing)
    assert isinstance(yard.backend, Restoring)
    assert [stage.name for stage in machine.stages] == ["prepare", "cgroup", "launch", "agent"]
    told = await shell(machine, "hostname; cat /proc/1/comm; cat /proc/version; cat /proc/mounts /proc/self/mountinfo")
    assert told.splitlines()[:2] == [f"box-{machine.id}", "agent"]
    assert os.uname().release not in told
    assert str(yard.directory) not in told


async def test_the_shell_runs_as_who_is_asked_for(machine: GvisorMachine) -> None:
    assert (
        await shell(machine, "id -u; touch /root/x 2>&1 || echo no", user="user")
        == "1000\ntouch: cannot touch '/root/x': Permission denied\nno\n"
    )


async def test_files_go_in_and_out_and_lie_in_the_upper(yard: GvisorYard, machine: GvisorMachine) -> None:
    content = os.urandom(2_000_000)
    agent = Connection.open(machine.dial())
    await files.write(agent, "/root/data", content)
    await files.write(agent, "/usr/local/new", b"over the machine's /usr")
    assert await files.read(agent, "/root/data") == content
    agent.close()
    assert (machine.directory / "upper/root/root/data").read_bytes() == content
    assert (machine.directory / "upper/usr/local/new").exists()
    assert "new" not in os.listdir("/usr/local")  # noqa: PTH208


async def test_a_port_is_reached_through_the_agent(machine: GvisorMachine) -> None:
    server = (
        "import socket; s = socket.create_server(('127.0.0.1', 80)); print('up', flush=True); c, _ = s.accept(); c.sendall(c.recv(9)[::-1])"
    )
    agent = Connection.open(machine.dial())
    process = start_process(agent, Command(argv=("/usr/bin/python3", "-c", server)))
    assert await process.tap().next() == (Kind.DATA, b"up\n")
    connection = await asyncio.to_thread(dial, machine.dial(), 80, pass_descriptor=machine.passes_descriptors)
    with connection:
        connection.sendall(b"abc")
        assert await asyncio.to_thread(connection.recv, 9) == b"cba"
    agent.close()


async def test_nobody_outside_is_reached(machine: GvisorMachine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        told = await shell(machine, f"python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 2)' 2>&1 | tail -1")
    assert "Connection refused" in told


async def test_limits_are_seen(yard: GvisorYard) -> None:
    machine = await yard.backend.start(yard.spec(resources=Resources(cpu=1, memory=200 * MIB)))
    told = await shell(machine, "nproc; grep MemTotal /proc/meminfo | tr -dc 0-9; echo; df -k /tmp | tail -1 | tr -s ' ' | cut -d' ' -f2")
    assert told.split() == ["1", str(200 * 1024), str(100 * 1024)]
    usage = await machine.usage()
    assert usage.memory_limit in (200 * MIB, None)
    assert usage.processes == 1


async def test_traffic_of_its_disk_is_limited_or_refused(yard: GvisorYard) -> None:
    tree = CgroupTree.discover()
    if "io" not in tree.controllers:
        pytest.skip("no cgroup can limit disks here")
    limited = yard.spec(resources=Resources(disk_write=5 * MIB))
    if tree.limits_direct_writes_only:
        with pytest.raises(CapabilityError, match="version 1 of cgroups cannot hold back what waits in the page cache"):
            await yard.backend.start(limited)
        machine = await yard.backend.start(yard.spec(resources=Resources(memory=300 * MIB)))
        with pytest.raises(CapabilityError, match="version 1 of cgroups"):
            await machine.resize(Resources(disk_write=5 * MIB, memory=200 * MIB))
        assert (await machine.usage()).memory_limit in (300 * MIB, None), "a refusal changes nothing"
        return
    machine = await yard.backend.start(limited)
    directory = next(Path(hierarchy.base, machine._held.cgroup.name) for hierarchy in tree.hierarchies if "io" in hierarchy.controllers)
    assert str(machine.pid) in (directory / "cgroup.procs").read_text().split()
    await machine.resize(Resources(disk_write=6 * MIB))
    assert str(6 * MIB) in (directory / "io.max").read_text()


async def test_a_fork_bomb_of_root_is_held(yard: GvisorYard) -> None:
    machine = await yard.backend.start(yard.spec(resources=Resources(pids=20)))
    told = await shell(machine, "i=0; while [ $i -lt 40 ]; do sleep 100 & i=$((i+1)); done; echo all")
    assert "Cannot fork" in told
    await machine.resize(Resources(pids=100))
    assert await shell(machine, "echo more") == "more\n"
    assert await machine.process_limit_hits() == 0


async def test_want_of_memory_ends_the_sandbox_and_is_told(yard: GvisorYard) -> None:
    if "memory" not in CgroupTree.discover().controllers:
        pytest.skip("no cgroup limits memory here")
    neighbour = await yard.backend.start(yard.spec())
    machine = await yard.backend.start(yard.spec(resources=Resources(memory=64 * MIB)))
    agent = Connection.open(machine.dial())
    start_process(agent, Command(argv=("/usr/bin/python3", "-c", "x = bytearray(400 << 20)")))
    ended = await asyncio.wait_for(machine.wait(), 60)
    assert ended.reason == "it was ended for want of memory"
    (kill, *_) = ended.evidence["oom_kills"]  # type: ignore[misc]
    assert kill.limit == 64 * MIB
    with pytest.raises(SandboxDied, match="want of memory"):
        machine.dial()
    assert await shell(neighbour, "echo alive") == "alive\n"


async def test_a_live_limit_is_changed(yard: GvisorYard) -> None:
    machine = await yard.backend.start(yard.spec(resources=Resources(cpu=1, memory=300 * MIB)))
    await machine.resize(Resources(cpu=0.5, memory=200 * MIB))
    assert (await machine.usage()).memory_limit in (200 * MIB, None)
    assert await shell(machine, "echo on") == "on\n"


def _next_count(file: Path, before: str) -> str:
    """What the counter has written after `before`; it is asked without rest, since nothing tells of a change."""
    while not file.exists() or (now := file.read_text()) in ("", before):
        continue
    return now


async def test_pause_stops_everything_and_resume_lets_it_go_on(yard: GvisorYard, machine: GvisorMachine) -> None:
    neighbour = await yard.backend.start(yard.spec())
    agent = Connection.open(machine.dial())
    start_process(agent, Command(argv=("/bin/sh", "-c", "n=0; while :; do n=$((n+1)); echo $n >/root/n; done")))
    file = machine.directory / "upper/root/root/n"
    await asyncio.to_thread(_next_count, file, "")
    await machine.pause()
    await machine.pause()
    before = file.read_text()
    assert (await machine.usage()).processes is None
    assert await shell(neighbour, "for i in 1 2 3 4 5; do /bin/true; done; echo goes on") == "goes on\n"
    assert file.read_text() == before
    await machine.resume()
    await machine.resume()
    await asyncio.to_thread(_next_count, file, before)
    agent.close()


async def test_kill_works_in_every_state_and_says_the_same_again(yard: GvisorYard) -> None:
    machines = [await yard.backend.start(yard.spec()) for _ in range(2)]
    await machines[1].pause()
    for machine in machines:
        first, second = await asyncio.gather(machine.kill(), machine.kill())
        assert first is second is await machine.wait()
        assert (first.reason, first.signal) == ("it was killed", signal.SIGKILL)
        with pytest.raises(SandboxDied, match="it was killed"):
            await machine.resume()
        await machine.freed()
    assert yard.leftovers() == NOTHING


async def test_an_end_from_outside_or_inside_is_noticed(yard: GvisorYard) -> None:
    killed, ended = [await yard.backend.start(yard.spec()) for _ in range(2)]
    os.kill(killed.pid, signal.SIGKILL)
    await shell_until_lost(ended, "kill -TERM 1")
    assert (await asyncio.wait_for(killed.wait(), 30)).reason == "its agent ended"
    assert (await asyncio.wait_for(ended.wait(), 30)).reason == "its agent ended"
    for machine in (killed, ended):
        await machine.freed()
    assert yard.leftovers() == NOTHING


async def shell_until_lost(machine: GvisorMachine, line: str) -> None:
    agent = Connection.open(machine.dial())
    start_process(agent, Command(argv=("/bin/sh", "-c", line)))
    await machine.wait()
    agent.close()


async def test_close_ends_all_waits_for_it_and_refuses_more(yard: GvisorYard) -> None:
    machine = await yard.backend.start(yard.spec())
    await yard.backend.close()
    await yard.backend.close()
    assert yard.leftovers() == NOTHING
    assert (await machine.wait()).reason == "it was killed"
    with pytest.raises(InvalidState, match="closed"):
        await yard.backend.start(yard.spec())


async def test_nothing_stays_open(yard: GvisorYard) -> None:
    counts = []
    for _ in range(2):
        machine = await yard.backend.start(yard.spec())
        await shell(machine, "true")
        await machine.kill()
        await machine.freed()
        counts.append(open_descriptors())
    assert counts[0] == counts[1]


def _refuse(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


BROKEN = OSError(5, "made to fail")
STAGES: dict[str, tuple[object, str]] = {
    "bundle": (bundle, "write"),
    "listener": (endpoint, "listen"),
    "log": (endpoint, "open_log"),
    "group": (CgroupTree, "create"),
    "limits": (Cgroup, "apply"),
    "mounts": (mounts, "mount_overlay"),
    "meminfo": (mounts, "cover"),
    "state": (control, "known"),
    "line": (Switchboard, "_attach"),
    "processes": (backend_module, "limit_processes"),
    "cores": (backend_module, "release"),
    "machine": (backend_module, "GvisorMachine"),
}


@pytest.mark.parametrize("stage", STAGES)
async def test_a_failure_at_any_step_leaves_nothing(yard: GvisorYard, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    before = open_descriptors()
    with monkeypatch.context() as patch:
        owner, name = STAGES[stage]
        patch.setattr(owner, name, _refuse(BROKEN))
        with pytest.raises(InfrastructureError, match=r"could not be started.*made to fail"):
            await yard.backend.start(yard.spec(resources=Resources(memory=200 * MIB)))
    assert yard.leftovers() == NOTHING
    assert open_descriptors() == before


async def test_an_agent_that_does_not_speak_is_told_with_what_it_printed(yard: GvisorYard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "agent_arguments", lambda _: [bundle.AGENT, "--no-such-option", "1"])
    with pytest.raises(InfrastructureError, match=r"ended before its agent answered; it had printed: .*no-such-option"):
        await yard.backend.start(yard.spec())
    assert yard.leftovers() == NOTHING


async def test_a_runsc_that_fails_is_quoted(yard: GvisorYard) -> None:
    broken = yard.backend._runsc
    yard.backend._runsc = replace(broken, path=Path("/bin/false"))
    with pytest.raises(InfrastructureError, match=r"runsc could not make the sandbox \(status 1\): it printed nothing"):
        await yard.backend.start(yard.spec())
    yard.backend._runsc = broken
    image = replace(yard.image, trees=(Tree("/", "root", (Path("/no/such/layer"),)),))
    with pytest.raises(InfrastructureError, match="/no/such/layer"):
        await yard.backend.start(yard.spec(image=image))
    assert yard.leftovers() == NOTHING


@pytest.mark.parametrize("patience", [0.02, 0.15])
async def test_a_slow_start_is_given_up_with_its_stages(yard: GvisorYard, monkeypatch: pytest.MonkeyPatch, patience: float) -> None:
    monkeypatch.setattr(backend_module, "limit_processes", _never)
    with pytest.raises(StartupTimeout) as caught:
        await yard.backend.start(yard.spec(timeouts=Timeouts(startup=patience)))
    assert caught.value.stage in ("prepare", "cgroup", "launch", "agent")
    assert yard.leftovers() == NOTHING


async def _never(*_: object) -> None:
    await asyncio.Event().wait()


async def test_a_start_that_is_cancelled_leaves_nothing(yard: GvisorYard) -> None:
    task = asyncio.ensure_future(yard.backend.start(yard.spec()))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert yard.leftovers() == NOTHING


async def test_a_start_that_is_cancelled_while_its_cgroup_is_made_leaves_none(yard: GvisorYard, monkeypatch: pytest.MonkeyPatch) -> None:
    create, begun, go_on = CgroupTree.create, threading.Event(), threading.Event()

    def slow(tree: CgroupTree, name: str) -> Cgroup:
        begun.set()
        go_on.wait()
        return create(tree, name)

    monkeypatch.setattr(CgroupTree, "create", slow)
    task = asyncio.ensure_future(yard.backend.start(yard.spec()))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert yard.leftovers() == NOTHING
