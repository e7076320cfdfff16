"""Checks of a sandbox's life: start, standing still, its end by its own time and by its owner's."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from agentenv.conformance.resident import start_resident
from agentenv.conformance.subject import PATIENT, Subject
from agentenv.errors import AgentEnvError, InvalidState, NotFound, SandboxDied, StartupTimeout
from agentenv.isolation.conformance import CheckFailed, check, expect, expect_equal, expect_refusal
from agentenv.isolation.conformance.traces import kill_from_outside, open_descriptors, traces_of, wait_until_gone
from agentenv.isolation.contract import Timeouts
from agentenv.node import Node
from agentenv.node.network_slots import NETNS_DIRECTORY
from agentenv.sandbox import AsyncSandbox

_SWEEPS = 5
CLOCK_TOLERANCE = 0.05
"""Seconds by which a sandbox's clock may be wrong, beyond what asking it takes."""


@check("start.timeout")
async def startup_timeout(subject: Subject) -> None:
    """A start that takes too long is a `StartupTimeout` with stage and timings; no sandbox and no directory of one is left."""
    for limit in (0.0001, 0.001):
        with expect_refusal(f"a start within {limit:g} s", StartupTimeout) as caught:
            await subject.create(timeouts=Timeouts(startup=limit))
        error = caught[0]
        assert isinstance(error, StartupTimeout)
        expect(error.stage and "startup timeout" in str(error), f"it does not name the stage: {error}")
    await expect_no_others(subject, 0)


@check("start.cancelled", seconds=300)
async def cancelled(subject: Subject) -> None:
    """A start that is given up at any moment leaves no sandbox, no process, no mount."""
    whole = sum(stage.seconds for stage in (await subject.create()).timings)
    await subject.tidy()
    for number in range(_SWEEPS):
        begun = asyncio.ensure_future(subject.create())
        await asyncio.wait({begun}, timeout=whole * number / _SWEEPS)
        begun.cancel()
        await asyncio.wait({begun})
    await subject.tidy()
    await expect_no_others(subject, 0)


@check("start.unknown")
async def unknown(subject: Subject) -> None:
    """An image and a snapshot that do not exist are `NotFound`, and nothing is started."""
    for wish in ({"image": "no-such-image"}, {"snapshot": "no-such-snapshot"}):
        with expect_refusal(f"{wish}", NotFound, AgentEnvError):
            await subject.create(**wish)
    await expect_no_others(subject, 0)


@check("pause.stands-still", needs=("pause",))
async def stands_still(subject: Subject) -> None:
    """A paused sandbox refuses commands by saying so, tells its metrics, and goes on with what ran when it is resumed."""
    sandbox = await subject.create()
    await subject.require(sandbox, "python3")
    resident = await start_resident(sandbox)
    await resident.ask(sandbox, "41")
    await sandbox.pause()
    await sandbox.pause()
    expect_equal("its state", sandbox.state, "paused")
    with expect_refusal("a command in a paused sandbox", InvalidState):
        await sandbox.commands.run("true")
    with expect_refusal("a dial into a paused sandbox", InvalidState):
        (await sandbox.dial(resident.port)).close()
    await sandbox.metrics()
    await sandbox.resume()
    await sandbox.resume()
    expect_equal("what its program holds then", (await resident.ask(sandbox)).value, 41)
    await resident.ticks_on(sandbox)


@check("pause.clock", needs=("pause",))
async def clock(subject: Subject) -> None:
    """A sandbox has the right time from its start on, and after a pause again."""
    sandbox = await subject.create()
    await expect_right_time(sandbox)
    await sandbox.pause()
    await asyncio.sleep(1)  # a second in which its clock may stand still
    await sandbox.resume()
    await expect_right_time(sandbox)


@check("pause.running-command", needs=("pause",))
async def running_command(subject: Subject) -> None:
    """A command that runs over a pause goes on, its output whole, and the pause does not count against its time-out."""
    sandbox = await subject.create()
    line = "i=0; while [ $i -lt 30 ]; do echo $i; sleep 0.05; i=$((i + 1)); done"
    running = asyncio.ensure_future(sandbox.commands.run(line, timeout=60))
    for _ in range(3):
        await sandbox.pause()
        await sandbox.resume()
    expect_equal("its output", (await running).stdout.split(), [str(number) for number in range(30)])


@check("pause.to-disk", needs=("memory_snapshot",), seconds=300)
async def to_disk(subject: Subject) -> None:
    """A sandbox that is paused to the disk takes no process, and goes on with files and memory; also when its owner has ended."""
    async with await Node.open(subject.node.home) as other:
        sandbox = await AsyncSandbox.create(subject.image, isolation=subject.isolation, timeouts=PATIENT, node=other)
        await subject.require(sandbox, "python3")
        resident = await start_resident(sandbox)
        await resident.ask(sandbox, "41")
        await sandbox.files.write("/root/file", "kept")
        for value in (41, 42):
            await sandbox.pause(to_disk=True)
            with expect_refusal("a command in a sandbox that is on the disk", InvalidState):
                await sandbox.commands.run("true")
            if left := await wait_until_gone(other.owner.machine_directory(sandbox.id)):
                raise CheckFailed(f"a sandbox that is on the disk has {left}.")
            await sandbox.resume()
            expect_equal("the value in its memory", (await resident.ask(sandbox)).value, value)
            await resident.ask(sandbox, "add")
        await sandbox.pause(to_disk=True)
    again = subject.keep(await AsyncSandbox.connect(sandbox.id, node=subject.node))
    await again.resume()
    expect_equal("the value in its memory, with another owner", (await resident.ask(again)).value, 43)
    expect_equal("its file, with another owner", await again.files.read("/root/file"), "kept")
    expect_equal("its commands, with another owner", [one.pid for one in await again.commands.list()], [resident.pid])


@check("end.lifetime")
async def lifetime(subject: Subject) -> None:
    """A sandbox ends when its time is over, and says that this is why."""
    sandbox = await subject.create(timeout=None)
    running = asyncio.ensure_future(sandbox.commands.run("sleep 1000"))
    await sandbox.set_timeout(0.2)
    with expect_refusal("a command beyond its sandbox's lifetime", InvalidState):
        await running
    with expect_refusal("a command in a sandbox whose time is over", InvalidState) as caught:
        await sandbox.commands.run("true")
    expect("lifetime" in str(caught[0]), f"it does not say why: {caught[0]}")


@check("end.kill")
async def kill(subject: Subject) -> None:
    """A sandbox is killed in every state, twice without harm, and nothing of it is left; what ran in it is told."""
    has = subject.capabilities
    states = {"running": True, "paused": has.pause, "on the disk": has.memory_snapshot}
    for state in [name for name, possible in states.items() if possible]:
        sandbox = await subject.create()
        running = asyncio.ensure_future(sandbox.commands.run("sleep 1000"))
        await sandbox.commands.run("sleep 1000 >/dev/null 2>&1 & true")
        if state != "running":
            await sandbox.pause(to_disk=state == "on the disk")
        expect_equal("what the first `kill` says", await sandbox.kill(), True)
        expect_equal("what the second `kill` says", await sandbox.kill(), False)
        with expect_refusal("a command whose sandbox was killed", InvalidState):
            await running
        if left := await wait_until_gone(subject.node.owner.machine_directory(sandbox.id)):
            raise CheckFailed(f"a sandbox that was killed while {state} leaves {left}.")
        expect_equal("the sandboxes of that name", [one.id for one in subject.node.list() if one.id == sandbox.id], [])


@check("end.from-outside")
async def from_outside(subject: Subject) -> None:
    """A sandbox whose process of this machine is killed by somebody else is `SandboxDied` to whoever waits in it, and leaves nothing."""
    sandbox = await subject.create()
    node_sandbox = subject.node.get(sandbox.id)
    running = asyncio.ensure_future(sandbox.commands.run("sleep 1000"))
    await sandbox.commands.run("true")
    await kill_from_outside(node_sandbox.machine, node_sandbox.directory)
    with expect_refusal("a command whose sandbox died", SandboxDied):
        await running
    with expect_refusal("a command in a sandbox that died", SandboxDied):
        await sandbox.commands.run("true")
    expect_equal("its state", sandbox.state, "dead")
    if left := await wait_until_gone(subject.node.owner.machine_directory(sandbox.id)):
        raise CheckFailed(f"a sandbox that died leaves {left}.")


@check("end.accumulates-nothing", seconds=300)
async def accumulates_nothing(subject: Subject) -> None:
    """Sandboxes that come and go, with forks, dials and published ports, leave no more descriptors, threads and cgroups than the first."""
    counts = []
    for _ in range(4):
        sandbox = await subject.create()
        await sandbox.commands.run("true")
        await sandbox.get_host(7000)
        with suppress(ConnectionRefusedError):
            (await sandbox.dial(1)).close()
        if subject.capabilities.filesystem_snapshot:
            await subject.fork(sandbox, 1)
        directory = subject.node.owner.machine_directory(sandbox.id)
        await subject.tidy()
        await wait_until_gone(directory)
        groups = await asyncio.to_thread(traces_of, directory, (subject.node.owner.id,))
        counts.append((open_descriptors(), len(groups.cgroups)))
    for what, first, last in zip(("descriptors", "cgroups"), counts[1], counts[-1], strict=True):
        expect(last <= first, f"there are {last} {what} after four rounds, and were {first} after two.")


@check("end.owner-death", seconds=300)
async def owner_death(subject: Subject) -> None:
    """When the process that owns sandboxes is killed they end; the next owner finds and removes what could not end by itself."""
    owner, directory = await _killed_owner(subject)
    async with await Node.open(subject.node.home):
        left = await wait_until_gone(directory, (owner,))
        expect(not left, f"the sandboxes of a killed process leave {left}.")
        expect(not await asyncio.to_thread(directory.exists), f"{directory} is still there.")
        networks = await asyncio.to_thread(lambda: [path.name for path in NETNS_DIRECTORY.glob(f"*{owner}*")])
        expect_equal("its network namespaces", networks, [])


async def _killed_owner(subject: Subject) -> tuple[str, Path]:
    """A process that owned a running, a paused and where possible a networked sandbox when it was killed: its name and its directory."""
    words = [sys.executable, "-c", _OWNER, str(subject.node.home), subject.isolation, subject.image]
    wishes = {"pause": subject.capabilities.pause, "network": subject.capabilities.network}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = await asyncio.create_subprocess_exec(*words, json.dumps(wishes), stdout=asyncio.subprocess.PIPE, env=environment)
    assert process.stdout is not None
    owner = (await process.stdout.readline()).decode().strip()
    if process.returncode is None:
        process.kill()
    await process.wait()
    expect(owner, "a process of its own could not start sandboxes; what it said is above.")
    return owner, subject.node.home / "owners" / owner


_OWNER = """
import asyncio, json, sys
from pathlib import Path
from agentenv.conformance.subject import PATIENT
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox

async def main(home, isolation, image, wishes):
    node = await Node.open(Path(home))
    wanted = {"node": node, "isolation": isolation, "image": image, "timeouts": PATIENT}
    sandboxes = [await AsyncSandbox.create(**wanted) for _ in range(2)]
    for sandbox in sandboxes:
        await sandbox.commands.run("sleep 1000", background=True)
    if wishes["pause"]:
        await sandboxes[1].pause()
    if wishes["network"]:
        await AsyncSandbox.create(**wanted, network=True)
    print(node.owner.id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:4], json.loads(sys.argv[4])))
"""


async def expect_no_others(subject: Subject, wanted: int) -> None:
    """Raises `CheckFailed` when this owner has other sandboxes than the shared one, or directories of such."""
    mine = [record for record in subject.node.list() if record.owner == subject.node.owner.id]
    shared = subject.has_shared()
    expect_equal("the number of sandboxes that this process owns", len(mine) - shared, wanted)
    await subject.node.collect_garbage()
    left = await asyncio.to_thread(lambda: [path.name for path in subject.node.owner.directory.glob("sb*")])
    expect_equal("the number of directories of sandboxes", len(left) - shared, wanted)


async def expect_right_time(sandbox: AsyncSandbox) -> None:
    """Raises `CheckFailed` when the sandbox's clock is wrong."""
    before = time.time()
    told = int((await sandbox.commands.run("date +%s%N", check=True)).stdout) / 1e9
    after = time.time()
    wrong = max(before - told, told - after, 0.0)
    expect(wrong <= CLOCK_TOLERANCE, f"a sandbox's clock is wrong by {wrong * 1000:.0f} ms.")


async def expect_alive(sandbox: AsyncSandbox) -> None:
    """Raises `CheckFailed` unless the sandbox answers."""
    expect_equal("what the sandbox prints", (await sandbox.commands.run("echo alive")).stdout, "alive\n")


CHECKS = (
    startup_timeout,
    cancelled,
    unknown,
    stands_still,
    clock,
    running_command,
    to_disk,
    lifetime,
    kill,
    from_outside,
    accumulates_nothing,
    owner_death,
)
