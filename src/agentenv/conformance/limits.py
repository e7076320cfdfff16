"""Checks of limits: seen from inside, held, changed while the sandbox runs, and named when they are reached."""

from __future__ import annotations

import os
from time import perf_counter

from agentenv.conformance.subject import Subject
from agentenv.errors import CapabilityError, OutOfMemory, ProcessLimit, StorageFull
from agentenv.isolation.conformance import NotApplicable, check, expect, expect_equal, expect_refusal
from agentenv.sandbox import AsyncSandbox

MIB = 1 << 20
_DISK_RATE, _DISK_WRITTEN = 4 * MIB, 24 * MIB
"""Bytes a second that are allowed, and bytes that are written, which is more than what may go at once."""

_BURN = "end=$(($(date +%s) + 3)); while [ $(date +%s) -lt $end ]; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; done"


@check("limits.cpu-seen", needs=("cpu_limit",))
async def cpu_seen(subject: Subject) -> None:
    """A sandbox sees as many processors as it was given."""
    if (os.cpu_count() or 1) < 2:
        raise NotApplicable("this machine has one processor only.")
    for cores in (1, 2):
        sandbox = await subject.create(resources={"cpu": cores, "memory": 512 * MIB})
        expect_equal(f"`nproc` with {cores} of cpu", (await sandbox.commands.run("nproc")).stdout.strip(), str(cores))


@check("limits.cpu-held", needs=("cpu_limit",))
async def cpu_held(subject: Subject) -> None:
    """Two programs that compute without end get no more processor time together than the limit."""
    sandbox = await subject.create(resources={"cpu": 1, "memory": 512 * MIB})
    before, since = (await sandbox.metrics()).cpu_seconds, perf_counter()
    await sandbox.commands.run(f"({_BURN}) & ({_BURN}) & wait", check=True)
    after, wall = (await sandbox.metrics()).cpu_seconds, perf_counter() - since
    if before is None or after is None:
        raise NotApplicable("the backend does not tell processor time.")
    used = (after - before) / wall
    expect(used <= 1.3, f"a sandbox with 1 of cpu has used {used:.2f} processors for {wall:.1f} s.")


@check("limits.memory-seen", needs=("memory_limit",))
async def memory_seen(subject: Subject) -> None:
    """A sandbox sees the memory that it was given, a kernel of its own taken off."""
    given = 512 * MIB
    sandbox = await subject.create(resources={"memory": given})
    seen = int((await sandbox.commands.run("grep MemTotal /proc/meminfo | tr -dc 0-9", check=True)).stdout) * 1024
    expect(given * 0.6 <= seen <= given * 1.02, f"it was given {given >> 20} MiB and sees {seen >> 20} MiB.")
    limit = (await sandbox.metrics()).memory_limit
    expect(limit is None or limit == given, f"the limit in its metrics is {limit}, and it was given {given} bytes.")


@check("limits.out-of-memory", needs=("memory_limit",))
async def out_of_memory(subject: Subject) -> None:
    """What uses more memory than there is ends as `OutOfMemory`, which names the limit; a neighbour does not notice."""
    given = 256 * MIB
    hungry, neighbour = await subject.create(resources={"memory": given}), await subject.sandbox()
    with expect_refusal("a program that wants more memory than there is", OutOfMemory) as caught:
        await hungry.commands.run("head -c 2000000000 /dev/zero | tail -c 1500000000 >/dev/null")
    error = caught[0]
    assert isinstance(error, OutOfMemory)
    expect_equal("the limit that it names", error.limit, given)
    expect("resources.memory" in str(error), f"it does not name what to raise: {error}")
    expect_equal("what the neighbour prints", (await neighbour.commands.run("echo alive")).stdout, "alive\n")
    if await hungry.is_running():
        expect_equal("what the sandbox itself prints, where it lives on", (await hungry.commands.run("echo alive")).stdout, "alive\n")


@check("limits.processes", needs=("process_limit",))
async def processes(subject: Subject) -> None:
    """A program that starts more processes than are allowed is refused, and the agent goes on answering."""
    sandbox = await subject.create(resources={"pids": 64, "memory": 512 * MIB})
    line = "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i + 1)); done; echo all of them"
    try:
        told = await sandbox.commands.run(["sh", "-c", line], timeout=60)
        expect(told.exit_code != 0 or "all of them" not in told.stdout or told.stderr, "200 processes were started where 64 are allowed.")
    except ProcessLimit as error:
        expect_equal("the limit that it names", error.limit, 64)
    used = (await sandbox.metrics()).processes
    expect(used is None or used < 128, f"{used} processes run where 64 are allowed, a few of the backend's own aside.")
    for process in await sandbox.commands.list():
        await sandbox.commands.kill(process.pid)


@check("limits.storage")
async def storage(subject: Subject) -> None:
    """What writes more than the storage that was given ends as `StorageFull`, which names the limit, and files can then be removed."""
    sandbox = await subject.create(resources={"storage": 64 * MIB})
    with expect_refusal("a file larger than the storage", StorageFull) as caught:
        ended = await sandbox.commands.run("head -c 300000000 /dev/zero > /root/big; code=$?; sync; exit $code")
        expect(ended.exit_code != 0, f"300 MB were written where 64 MiB are allowed: {ended}.")
    expect("resources.storage" in str(caught[0]), f"it does not name what to raise: {caught[0]}")
    if not await sandbox.is_running():
        expect(_lost(subject, "storage:"), "the sandbox was ended for it, which `lost` does not tell.")
        return
    await sandbox.files.remove("/root/big", missing_ok=True)
    await sandbox.files.write("/root/small", "fits")
    expect_equal("a file that is written then", await sandbox.files.read("/root/small"), "fits")


@check("limits.disk", needs=("disk_limit",))
async def disk(subject: Subject) -> None:
    """What a sandbox writes gets to its disk no faster than the limit on its traffic lets it."""
    sandbox = await subject.create(resources={"disk_read": _DISK_RATE, "disk_write": _DISK_RATE, "memory": 512 * MIB})
    await subject.require(sandbox, "dd")
    since = perf_counter()
    await sandbox.commands.run(f"dd if=/dev/urandom of=/root/written bs={MIB} count={_DISK_WRITTEN // MIB} oflag=dsync", check=True)
    rate = _DISK_WRITTEN / (perf_counter() - since)
    expect(rate <= 2 * _DISK_RATE, f"it wrote {rate / MIB:.1f} MiB a second where {_DISK_RATE / MIB:.0f} are allowed.")


@check("limits.disk-unclaimed", unless=("disk_limit",))
async def disk_unclaimed(subject: Subject) -> None:
    """A limit on the traffic of disks that the backend does not claim is refused."""
    with expect_refusal("a limit on the traffic of disks", CapabilityError):
        await subject.create(resources={"disk_read": _DISK_RATE, "disk_write": _DISK_RATE})


@check("limits.resize", needs=("live_resize", "memory_limit"), seconds=240)
async def resize(subject: Subject) -> None:
    """Limits are taken back and given again while the sandbox runs: the new ones are told, and held. What cannot grow says so."""
    cores = min(2, os.cpu_count() or 1)
    sandbox = await subject.create(resources={"cpu": cores, "memory": 512 * MIB})
    await sandbox.resize(memory=256 * MIB, cpu=1)
    await _expect_limit(sandbox, 256 * MIB)
    seen = (await sandbox.commands.run("nproc")).stdout.strip()
    expect(seen == "1" or _lost(subject, "cpu:"), f"it sees {seen} processors after a resize to 1, which `lost` does not tell.")
    await sandbox.resize(memory=512 * MIB, cpu=cores)
    await _expect_limit(sandbox, 512 * MIB)
    try:
        await sandbox.resize(memory=768 * MIB)
        await _expect_limit(sandbox, 768 * MIB)
    except CapabilityError as error:
        expect(_lost(subject, "resize:"), f"it cannot grow beyond what it started with, which `lost` does not tell: {error}")
        await _expect_limit(sandbox, 512 * MIB)
    await sandbox.resize(memory=256 * MIB)
    with expect_refusal("a program that wants more than the new limit", OutOfMemory):
        await sandbox.commands.run("head -c 2000000000 /dev/zero | tail -c 400000000 >/dev/null")


async def _expect_limit(sandbox: AsyncSandbox, wanted: int) -> None:
    limit = (await sandbox.metrics()).memory_limit
    expect(limit is None or limit == wanted, f"the limit in its metrics is {limit} after a resize to {wanted} bytes.")


def _lost(subject: Subject, word: str) -> bool:
    return any(sentence.startswith(word) for sentence in subject.capabilities.lost)


CHECKS = (cpu_seen, cpu_held, memory_seen, out_of_memory, processes, storage, disk, disk_unclaimed, resize)
