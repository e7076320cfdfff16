"""Checks of a machine's life: its start, the stream to its agent, its end, and what a failed start leaves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from agentenv.errors import AgentEnvError, InfrastructureError, InvalidState, SandboxDied, StartupTimeout
from agentenv.guest import Connection
from agentenv.isolation.conformance.check import check, expect, expect_equal, expect_refusal
from agentenv.isolation.conformance.traces import kill_from_outside, open_descriptors
from agentenv.isolation.conformance.yard import PATIENT, TOO_SHORT, Yard, open_yard, shell
from agentenv.isolation.contract import Machine, Timeouts, Tree

_CANCELLED_STARTS = 5


@check("machine.start")
async def start(yard: Yard) -> None:
    """A machine starts, tells how long each stage took, and its agent greets and answers."""
    machine = await yard.start()
    expect(isinstance(machine, Machine), f"{type(machine).__name__} lacks something that the contract's `Machine` has.")
    expect(machine.stages, "it tells no stages of its start.")
    expect(all(stage.name and stage.seconds >= 0 for stage in machine.stages), f"its stages make no sense: {machine.stages}.")
    expect_equal("what `echo` prints", await shell(machine, "echo hello"), "hello\n")
    connection = Connection.open(machine.dial())
    try:
        expect_equal("the answer to a ping", (await connection.call("ping", payload=b"x" * 1000))["payload"], b"x" * 1000)
        expect(connection.hello is not None, "its agent sent no hello.")
    finally:
        connection.close()


@check("machine.connections")
async def connections(yard: Yard) -> None:
    """Eight connections to the agent at the same time are independent of each other."""
    machine = await yard.start()
    answers = await asyncio.gather(*(shell(machine, f"echo {number}") for number in range(8)))
    expect_equal("what eight commands on eight connections print", answers, [f"{number}\n" for number in range(8)])


@check("machine.identity")
async def identity(yard: Yard) -> None:
    """Two machines of one image have the names and defaults that their specs gave them, and files of their own."""
    first = await yard.start(replace(yard.spec(), env={"PATH": "/bin", "WHO": "the first"}))
    second = await yard.start()
    expect_equal("the environment variable of its spec", await shell(first, "echo $WHO"), "the first\n")
    expect_equal(
        "the host names", [(await shell(one, "hostname")).strip() for one in (first, second)], [f"box-{first.id}", f"box-{second.id}"]
    )
    await shell(first, "echo mine > /root/file")
    expect_equal("the other machine's /root", await shell(second, "ls /root"), "")


@check("machine.kill")
async def kill(yard: Yard) -> None:
    """`kill` may be called twice, `wait` says the same, nothing of the machine is left, and it refuses what is asked of it then."""
    machine = await yard.start()
    await shell(machine, "sleep 1000 >/dev/null 2>&1 &")
    first = await machine.kill()
    expect_equal("what a second `kill` says", await machine.kill(), first)
    await _expect_dead(machine)
    expect_equal("what `wait` says after a `kill`", await machine.wait(), first)
    await yard.expect_nothing_left(yard.directory_of(machine), "a killed machine")


@check("machine.ends-by-itself")
async def ends_by_itself(yard: Yard) -> None:
    """A machine whose agent ends is seen to end, says how, and refuses what is asked of it then."""
    machine = await yard.start()
    connection = Connection.open(machine.dial())
    await connection.call("shutdown", grace=0.0)
    exited = await asyncio.wait_for(machine.wait(), 60)
    connection.close()
    expect(exited.reason, "it does not say how it ended.")
    await _expect_dead(machine)
    await machine.kill()
    await yard.expect_nothing_left(yard.directory_of(machine), "a machine that ended by itself")


@check("machine.killed-from-outside")
async def killed_from_outside(yard: Yard) -> None:
    """A machine whose process of this machine is killed by somebody else is seen to end, says how, and leaves nothing."""
    machine = await yard.start()
    await kill_from_outside(machine, yard.directory_of(machine))
    exited = await asyncio.wait_for(machine.wait(), 60)
    expect(exited.reason, "it does not say how it ended.")
    await _expect_dead(machine)
    await machine.kill()
    await yard.expect_nothing_left(yard.directory_of(machine), "a machine that was killed from outside")


@check("machine.usage")
async def usage(yard: Yard) -> None:
    """What a machine uses is told: some memory, at least one process, no kills and no refusals in an idle one."""
    machine = await yard.start()
    told = await machine.usage()
    expect(told.memory is None or told.memory > 0, f"it says that it uses {told.memory} bytes of memory.")
    expect(told.processes is None or told.processes >= 1, f"it says that it has {told.processes} processes.")
    expect_equal("the list of its out-of-memory kills", tuple(await machine.oom_kills()), ())
    expect_equal("the number of its refused forks", await machine.process_limit_hits(), 0)


@check("machine-start.timeout")
async def startup_timeout(yard: Yard) -> None:
    """A start that takes too long is a `StartupTimeout` which names the stage and the parameter, and leaves nothing."""
    spec = yard.spec(timeouts=Timeouts(startup=TOO_SHORT))
    with expect_refusal(f"a start within {TOO_SHORT:g} s", StartupTimeout) as caught:
        await yard.start(spec)
    error = caught[0]
    expect(isinstance(error, StartupTimeout) and error.stage, "it does not name the stage that took too long.")
    expect("timeouts.startup" in str(error), f"it does not name the parameter: {error}")
    await yard.expect_nothing_left(spec.directory, "a start that timed out")


@check("machine-start.broken-image")
async def broken_image(yard: Yard) -> None:
    """An image that is not there is one error (the node names what the system says), which leaves nothing; the next start works."""
    first = await yard.start()
    await first.kill()
    await yard.expect_nothing_left(yard.directory_of(first), "a killed machine")
    before = open_descriptors()
    broken = replace(yard.image, trees=(Tree("/", "root", (Path("/no/such/layer"),)),))
    spec = yard.spec(image=broken)
    with expect_refusal("an image without its directory", AgentEnvError, OSError):
        await yard.start(spec)
    after = open_descriptors()
    expect(after <= before, f"a failed start leaves {after - before} open descriptors.")
    await yard.expect_nothing_left(spec.directory, "a failed start")
    expect_equal("what the next machine prints", await shell(await yard.start(), "echo on"), "on\n")


@check("machine-start.cancelled", seconds=300)
async def cancelled(yard: Yard) -> None:
    """A start that is given up at any moment leaves nothing."""
    machine = await yard.start()
    whole = sum(stage.seconds for stage in machine.stages)
    await machine.kill()
    for number in range(_CANCELLED_STARTS):
        spec = yard.spec()
        begun = asyncio.ensure_future(yard.backend.start(spec))
        await asyncio.wait({begun}, timeout=whole * number / _CANCELLED_STARTS)
        begun.cancel()
        await asyncio.wait({begun})
        if not begun.cancelled():
            yard.keep(begun.result())  # it was quicker than the last time
            continue
        await yard.expect_nothing_left(spec.directory, f"a start given up after {number}/{_CANCELLED_STARTS} of its time")


@check("backend.close")
async def close(yard: Yard) -> None:
    """Closing a backend ends its machines, may be repeated, refuses further starts, and leaves nothing whatever."""
    async with open_yard(yard.backend.name) as other:
        running, failed = await other.start(), other.spec(timeouts=Timeouts(startup=TOO_SHORT))
        with expect_refusal("a start that takes too long", StartupTimeout):
            await other.start(failed)
        await other.backend.close()
        await other.backend.close()
        expect((await asyncio.wait_for(running.wait(), 60)).reason, "a machine does not say how it ended with its backend.")
        with expect_refusal("a start by a closed backend", InvalidState):
            await other.start(other.spec(timeouts=PATIENT))
        await other.expect_nothing_left(other.directory, "a closed backend")


async def _expect_dead(machine: Machine) -> None:
    with expect_refusal("`dial` on a machine that has ended", SandboxDied, InfrastructureError):
        machine.dial().close()
    with expect_refusal("`usage` of a machine that has ended", SandboxDied):
        await machine.usage()
    with expect_refusal("`pause` of a machine that has ended", SandboxDied):
        await machine.pause()


CHECKS = (start, connections, identity, kill, ends_by_itself, killed_from_outside, usage, startup_timeout, broken_image, cancelled, close)
