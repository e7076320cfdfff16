"""A node and its sandboxes: their life, their end, and that nothing stays of what failed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest
from tests.node.conftest import Recorder, Run
from tests.node.doubles import OpenBackend, OpenMachine

from agentenv.errors import CapabilityError, InfrastructureError, InvalidState, NotFound, SandboxDied, Stage, StartupTimeout, StorageFull
from agentenv.isolation.attempt import Attempt
from agentenv.isolation.contract import MachineSpec, Resources, RootFilesystem, Timeouts
from agentenv.node import NetworkRequest, Node, NodeSandbox, SandboxRequest


def machine_of(sandbox: NodeSandbox) -> OpenMachine:
    assert isinstance(sandbox.machine, OpenMachine)
    return sandbox.machine


def remains(node: Node) -> list[str]:
    """What is left in the owner's directory of any machine."""
    return [path.name for path in node.owner.directory.iterdir() if path.name.startswith("sb")]


async def test_a_sandbox_runs_is_listed_and_ends(node: Node, run: Run, recorder: Recorder) -> None:
    sandbox = await node.create(SandboxRequest(metadata={"for": "test"}, env={"GREETING": "hi"}))
    assert (await run(sandbox, "hostname; cat /etc/hostname; echo $GREETING")).split() == [sandbox.id, sandbox.id, "hi"]
    assert [(record.id, record.state, record.metadata) for record in node.list()] == [(sandbox.id, "running", {"for": "test"})]
    names = [stage.name for stage in sandbox.timings]
    assert names[:3] == ["image", "directories", "network"]
    assert {"cgroup", "launch", "agent"} <= set(names)
    ended = await sandbox.kill()
    assert ended.reason == "it was killed"
    assert await sandbox.wait() == ended
    assert node.list() == []
    assert remains(node) == []
    assert recorder.named("sandbox.created")[0]["backend"] == "namespace"
    assert recorder.named("sandbox.ended")[0]["id"] == sandbox.id


async def test_the_default_sandbox_shows_no_file_of_this_machine_outside_of_the_image(node: Node, run: Run) -> None:
    sandbox = await node.create(SandboxRequest())
    here = Path(__file__)
    assert await run(sandbox, f"test -e {here} || echo hidden") == "hidden\n"
    assert await run(sandbox, "ls /home; cat /etc/shadow 2>/dev/null || echo none") == "user\nnone\n"
    assert str(node.home) not in await run(sandbox, "cat /proc/self/mountinfo")
    assert "agentenv" in await run(sandbox, "python -c 'import agentenv, numpy; print(agentenv.__name__)'")


async def test_an_image_is_made_once_for_all_who_wait_for_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: list[str] = []
    resolve = node._images.resolve

    def counting(reference: str) -> RootFilesystem:
        resolved.append(reference)
        return resolve(reference)

    monkeypatch.setattr(node._images, "resolve", counting)
    first = await asyncio.gather(*(node._image("host") for _ in range(20)))
    assert resolved == ["host"]
    assert all(image is first[0] for image in first)
    for _ in range(2):
        with pytest.raises(NotFound):
            await node._image("no-such-scheme:x")
    assert resolved[1:] == ["no-such-scheme:x"] * 2


async def test_pause_resume_and_resize_change_the_record(node: Node, run: Run) -> None:
    sandbox = await node.create(SandboxRequest())
    await sandbox.pause()
    await sandbox.pause()
    assert [record.state for record in node.list()] == ["paused"]
    await sandbox.resume()
    await sandbox.resume()
    assert await run(sandbox, "echo on") == "on\n"
    await sandbox.resize(Resources(pids=50))
    assert sandbox.request.resources.pids == 50


@pytest.mark.parametrize("state", ["running", "paused"])
async def test_kill_works_in_every_state_and_again(open_node: Node, root_tree: str, state: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    if state == "paused":
        await sandbox.pause()
    first, second = await asyncio.gather(sandbox.kill(), sandbox.kill())
    assert first == second == await sandbox.kill()
    with pytest.raises(InvalidState, match="it was killed"):
        await sandbox.pause()
    assert remains(open_node) == []


async def test_a_death_of_its_own_is_an_infrastructure_error(open_node: Node, root_tree: str, recorder: Recorder) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).die("its agent was ended by signal 9")
    assert (await sandbox.wait()).reason == "its agent was ended by signal 9"
    with pytest.raises(SandboxDied, match="signal 9"):
        await sandbox.usage()
    assert recorder.named("sandbox.died")[0]["reason"] == "its agent was ended by signal 9"
    assert remains(open_node) == []
    with pytest.raises(NotFound):
        open_node.get(sandbox.id)


async def test_a_lifetime_ends_it_with_its_reason(open_node: Node, root_tree: str, recorder: Recorder) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree, lifetime=0.01))
    await sandbox.wait()
    assert recorder.named("sandbox.ended")[0]["reason"] == "its lifetime of 0.01 s is over"


async def test_a_longer_lifetime_replaces_the_shorter(open_node: Node, root_tree: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree, lifetime=0.05))
    other = await open_node.create(SandboxRequest(image=root_tree, lifetime=0.1))
    await sandbox.set_lifetime(1000)
    await other.wait()
    assert sandbox.state == "running"
    assert [record.expires is not None for record in open_node.list()] == [True]
    await sandbox.set_lifetime(None)
    assert [record.expires for record in open_node.list()] == [None]
    with pytest.raises(InvalidState, match="makes no sense"):
        await sandbox.set_lifetime(0)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (Resources(cpu=10_000), "resources.cpu is 10000"),
        (Resources(cpu=0), "resources.cpu is 0"),
        (Resources(memory=1 << 60), "resources.memory"),
        (Resources(storage=0), "resources.storage"),
        (Resources(pids=0), "resources.pids"),
    ],
)
async def test_what_this_machine_cannot_give_is_refused_before_anything_is_made(
    open_node: Node, resources: Resources, message: str
) -> None:
    with pytest.raises(CapabilityError, match=message):
        await open_node.create(SandboxRequest(resources=resources))
    assert remains(open_node) == []


@pytest.mark.parametrize("error", [InfrastructureError("no"), OSError(errno.EIO, "bad disk"), asyncio.CancelledError()])
async def test_a_failed_start_leaves_nothing(
    open_node: Node, backend: OpenBackend, root_tree: str, error: BaseException, recorder: Recorder
) -> None:
    backend.failures.append(error)
    with pytest.raises((InfrastructureError, asyncio.CancelledError)):
        await open_node.create(SandboxRequest(image=root_tree))
    assert remains(open_node) == []
    assert open_node.list() == []
    assert len(recorder.named("sandbox.start_failed")) == 1
    assert (await open_node.create(SandboxRequest(image=root_tree))).state == "running"


@pytest.mark.parametrize("step", ["spares.Spares.take", "starter.write_identity", "starter.with_identity", "journal.Journal.record"])
async def test_a_full_disk_at_any_step_leaves_nothing(open_node: Node, root_tree: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(f"agentenv.node.{step}", full)
        with pytest.raises(StorageFull):
            await open_node.create(SandboxRequest(image=root_tree))
    assert remains(open_node) == []
    assert open_node.list() == []


async def test_a_start_that_takes_too_long_names_its_stage(
    open_node: Node, backend: OpenBackend, root_tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(spec: MachineSpec) -> OpenMachine:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(backend, "start", never)
    with pytest.raises(StartupTimeout) as caught:
        await open_node.create(SandboxRequest(image=root_tree, timeouts=Timeouts(startup=0.05)))
    assert caught.value.stage == "backend"
    assert [stage.name for stage in caught.value.timings] == ["image", "directories", "network"]
    assert remains(open_node) == []


async def test_a_backends_timeout_gets_the_stages_before_it(open_node: Node, backend: OpenBackend, root_tree: str) -> None:
    backend.failures.append(StartupTimeout(kind="MicroVM", stage="kernel", timeout=3, timings=(Stage("firmware", 0.1),)))
    with pytest.raises(StartupTimeout, match="MicroVM startup timeout") as caught:
        await open_node.create(SandboxRequest(image=root_tree))
    assert [stage.name for stage in caught.value.timings] == ["image", "directories", "network", "firmware"]


async def test_of_two_limits_the_backends_comes_first(
    open_node: Node, backend: OpenBackend, root_tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def within_its_own(spec: MachineSpec) -> OpenMachine:
        attempt = Attempt("MicroVM")
        attempt.printed = lambda: "the last that it printed"
        async with attempt.within(spec.timeouts.startup):
            await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(backend, "start", within_its_own)
    with pytest.raises(StartupTimeout) as caught:
        await open_node.create(SandboxRequest(image=root_tree, timeouts=Timeouts(startup=0.3)))
    assert caught.value.last_output == "the last that it printed"


async def test_closing_ends_every_sandbox_even_when_the_closer_is_cancelled(backend: OpenBackend, home: Path, root_tree: str) -> None:
    node = await Node.open(home)
    sandboxes = [await node.create(SandboxRequest(image=root_tree)) for _ in range(3)]
    closing = asyncio.create_task(node.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await node.close()
    assert [sandbox.state for sandbox in sandboxes] == ["dead"] * 3
    assert backend.closed
    assert list((home / "owners").iterdir()) == []
    with pytest.raises(InvalidState, match="closed"):
        await node.create(SandboxRequest(image=root_tree))


async def test_a_start_under_way_is_ended_by_closing(
    backend: OpenBackend, home: Path, root_tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await Node.open(home)
    may_start, start = asyncio.Event(), backend.start

    async def slow(spec: MachineSpec) -> OpenMachine:
        await may_start.wait()
        return await start(spec)

    monkeypatch.setattr(backend, "start", slow)
    creating = asyncio.create_task(node.create(SandboxRequest(image=root_tree)))
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(node.close())
    await asyncio.sleep(0)
    may_start.set()
    await closing
    assert (await creating).state == "dead"
    assert backend.machines[0].ended.done()


async def test_a_failing_kill_is_told_and_frees_the_rest(open_node: Node, root_tree: str) -> None:
    sandbox = await open_node.create(SandboxRequest(image=root_tree))
    machine_of(sandbox).fail_at.add("kill")
    with pytest.raises(InfrastructureError, match="on purpose"):
        await sandbox.kill()
    assert remains(open_node) == []
    assert open_node.list() == []


async def test_unknown_images_and_snapshots(open_node: Node) -> None:
    with pytest.raises(NotFound, match="no image 'nonsense'"):
        await open_node.create(SandboxRequest(image="nonsense"))
    with pytest.raises(NotFound, match="no snapshot 'nothing'"):
        await open_node.create(SandboxRequest(snapshot="nothing"))


async def test_a_port_is_reachable_over_generations(node: Node, run: Run) -> None:
    sandbox = await node.create(SandboxRequest(network=NetworkRequest(ports=(8080,))))
    serve = (
        "cd /usr/share && (python -m http.server 8080 >/dev/null 2>&1 &) ; while ! (echo > /dev/tcp/127.0.0.1/8080) 2>/dev/null; do :; done"
    )
    await run(sandbox, serve)
    address = await sandbox.host_port(8080)
    assert address == await sandbox.host_port(8080)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    assert b"200 OK" in await reader.readline()
    writer.close()
    with pytest.raises(InvalidState, match="no port"):
        await sandbox.host_port(0)


async def test_who_writes_beyond_the_storage_limit_is_ended_and_the_sandbox_lives_on(node: Node, run: Run, recorder: Recorder) -> None:
    sandbox = await node.create(SandboxRequest(resources=Resources(storage=8 << 20)))
    # Several files, since one alone would meet the ceiling for a single file.
    fill = 'exec python -c \'import itertools\nfor n in itertools.count(): open(f"/var/{n}", "wb").write(bytes(1 << 20))\''
    with pytest.raises(AssertionError):
        await run(sandbox, fill)
    (kill, *_) = await sandbox.storage_kills()
    assert kill.process.startswith("python")
    assert kill.used > kill.limit == 8 << 20
    assert recorder.named("sandbox.storage_full")[0]["id"] == sandbox.id
    assert sandbox.state == "running"
    await run(sandbox, "rm /var/[0-9]* && echo well > /var/small")
    assert await run(sandbox, "cat /var/small") == "well\n"


async def test_a_sandbox_that_grows_without_a_writer_is_ended(node: Node) -> None:
    sandbox = await node.create(SandboxRequest(resources=Resources(storage=4 << 20)))
    upper = sandbox.directory / "upper"
    for number in range(1000):
        (upper / f"from-outside-{number}").write_bytes(bytes(1 << 20))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(sandbox.wait(), 0.05)
            break
    assert isinstance(sandbox.failure, StorageFull)
    with pytest.raises(StorageFull, match="no process of its own"):
        sandbox.require_alive()
