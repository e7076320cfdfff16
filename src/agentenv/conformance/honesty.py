"""Checks of what a backend says of itself: what it claims is so, what it does not claim it refuses, what it lost it tells."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentenv.conformance.life import expect_alive
from agentenv.conformance.subject import Subject
from agentenv.errors import CapabilityError
from agentenv.isolation.conformance import check, expect, expect_equal, expect_refusal

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_EXPLAINED = {
    "memory_limit": "memory",
    "cpu_limit": "cpu",
    "process_limit": "process",
    "disk_limit": "disk",
    "network": "network",
    "users": "users",
}
"""What every user expects, with the word that stands in `lost` where it is missing."""


@check("honesty.probe")
async def probe(subject: Subject) -> None:
    """A usable backend tells its version, and what is weaker than it could be in whole sentences."""
    probe = subject.yard.probe
    expect(probe.version, "it does not tell its version.")
    expect_equal("the name in its probe", probe.backend, subject.isolation)
    for sentence in probe.capabilities.lost:
        expect(sentence.strip().endswith((".", ".)")), f"`lost` holds something that is no sentence: {sentence!r}.")


@check("honesty.missing-is-explained")
async def missing_is_explained(subject: Subject) -> None:
    """Every limit, network or user that a backend does not claim is explained in `lost`."""
    for name, word in _EXPLAINED.items():
        told = any(word in sentence.lower() for sentence in subject.capabilities.lost)
        expect(getattr(subject.capabilities, name) or told, f"it does not claim {name}, and `lost` does not say why.")


@check("honesty.own-kernel", needs=("hardware_isolation",))
async def own_kernel(subject: Subject) -> None:
    """A backend that claims isolation by hardware runs each sandbox on a kernel of its own."""
    first, second = await subject.sandbox(), await subject.create()
    told = [(await one.commands.run(f"cat {_BOOT_ID}", check=True)).stdout.strip() for one in (first, second)]
    told.append((await asyncio.to_thread(_BOOT_ID.read_text)).strip())
    expect_equal("the number of different kernels", len(set(told)), 3)


@check("honesty.memory-unclaimed", unless=("memory_snapshot",))
async def memory_unclaimed(subject: Subject) -> None:
    """Memory that the backend cannot keep is refused wherever it is asked for, without half a snapshot, and the sandbox goes on."""
    sandbox = await subject.create()
    known = [one.id for one in await subject.node.snapshots()]
    with expect_refusal("a snapshot with memory", CapabilityError):
        await subject.snapshot(sandbox, memory=True)
    with expect_refusal("a fork with memory", CapabilityError):
        await subject.fork(sandbox, 1, memory=True)
    with expect_refusal("a pause to the disk", CapabilityError):
        await sandbox.pause(to_disk=True)
    taken = await subject.snapshot(sandbox, memory=False)
    with expect_refusal("a start from the memory of a snapshot of files", CapabilityError):
        await subject.create(snapshot=taken, memory=True)
    with expect_refusal("a rollback to the memory of a snapshot of files", CapabilityError):
        await sandbox.rollback(taken, memory=True)
    expect_equal("the snapshots", [one.id for one in await subject.node.snapshots()], [*known, taken.id])
    await expect_alive(sandbox)


@check("honesty.too-much")
async def too_much(subject: Subject) -> None:
    """Limits that this machine does not have are refused, at the start and by a resize, which then changes nothing."""
    with expect_refusal("a million processors", CapabilityError):
        await subject.create(resources={"cpu": 1_000_000})
    sandbox = await subject.create(resources={"memory": 512 << 20})
    with expect_refusal("a petabyte of memory", CapabilityError):
        await sandbox.resize(memory=1 << 50)
    limit = (await sandbox.metrics()).memory_limit
    expect(limit is None or limit == 512 << 20, f"the limit is {limit} after a resize that was refused.")
    await expect_alive(sandbox)


CHECKS = (probe, missing_is_explained, own_kernel, memory_unclaimed, too_much)
