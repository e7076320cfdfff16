"""QEMU's command line, without a QEMU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.isolation.contract import Resources
from agentenv.isolation.qemu.command import DEFAULT_MEMORY, Boot, Copy, Hardware, Plan, Tap, memory, processors, throttle_of

HARDWARE = Hardware("tcg", "max", processors=2, memory=256 << 20, disk=1 << 30, ports=3, network=False)
BOOT = Boot(Path("/k"), Path("/i"), "console=ttyS0 quiet")
PLAN = Plan(Path("/qemu"), HARDWARE, Path("/root.erofs"), Path("/m/disk.img"), control=7, ports=(8, 9, 10), start=BOOT)


def after(words: list[str], option: str) -> list[str]:
    """The values of all occurrences of an option."""
    return [words[place + 1] for place, word in enumerate(words) if word == option]


def test_a_machine_that_boots() -> None:
    words = PLAN.words()
    assert after(words, "-kernel") == ["/k"]
    assert after(words, "-append") == ["console=ttyS0 quiet"]
    assert after(words, "-m") == [f"{256 << 20}B"]
    assert after(words, "-smp") == ["2"]
    assert "memory-backend-ram,id=ram,size=268435456B" in after(words, "-object")
    assert after(words, "-incoming") == []
    assert PLAN.descriptors == (7, 8, 9, 10)


def test_every_port_has_its_channel() -> None:
    words = PLAN.words()
    assert len([value for value in after(words, "-chardev") if value.startswith("socket,id=channel")]) == 3
    devices = [value for value in after(words, "-device") if value.startswith("virtserialport")]
    assert devices == [f"virtserialport,id=port{number},nr={number},chardev=channel{number}" for number in (1, 2, 3)]


def test_a_copy_maps_its_memory_privately_and_needs_no_kernel() -> None:
    plan = replace(PLAN, start=Copy(Path("/c,1/memory"), 11))
    words = plan.words()
    assert "memory-backend-file,id=ram,size=268435456B,mem-path=/c,,1/memory,share=off" in after(words, "-object")
    assert after(words, "-incoming") == ["fd:11"]
    assert after(words, "-kernel") == []
    assert plan.descriptors == (7, 8, 9, 10, 11)
    upper = next(value for value in after(words, "-blockdev") if "node-name=upper" in value)
    assert "discard=ignore" in upper


def test_the_rate_of_the_disk_stands_between_the_guest_and_the_file() -> None:
    words = replace(PLAN, throttle={"bps-total": 1_000_000}).words()
    assert "throttle-group,id=rate,x-bps-total=1000000" in after(words, "-object")
    assert {"virtio-blk-device,write-zeroes=off,drive=slow-upper", "virtio-blk-device,drive=slow-root"} <= set(after(words, "-device"))


def test_limits_of_the_disk_come_from_the_sandbox_within_those_of_the_machine() -> None:
    assert throttle_of(Resources(), None) is None
    assert throttle_of(Resources(), 5_000_000) == {"bps-total": 5_000_000}
    own = Resources(disk_read=9_000_000, disk_write=1_000_000, disk_iops=100)
    assert throttle_of(own, None) == {"bps-read": 9_000_000, "bps-write": 1_000_000, "iops-read": 100, "iops-write": 100}
    assert throttle_of(own, 5_000_000) == {"bps-read": 5_000_000, "bps-write": 1_000_000, "iops-read": 100, "iops-write": 100}
    assert throttle_of(Resources(disk_write=1_000_000), None) == {"bps-write": 1_000_000}


def test_network_and_kvm() -> None:
    plan = replace(PLAN, hardware=replace(HARDWARE, accelerator="kvm", cpu="host"), tap=Tap(12, "02:00:00:00:00:01", 1400))
    words = plan.words()
    assert after(words, "-accel") == ["kvm"]
    assert after(words, "-cpu") == ["host"]
    assert "tap,id=net,fd=12" in after(words, "-netdev")
    assert "virtio-net-device,netdev=net,mac=02:00:00:00:00:01,host_mtu=1400" in after(words, "-device")
    assert plan.descriptors[-1] == 12


@pytest.mark.parametrize(("cpu", "count"), [(None, 1), (0.5, 1), (1.0, 1), (1.5, 2), (4, 4)])
def test_processors(cpu: float | None, count: int) -> None:
    assert processors(Resources(cpu=cpu)) == count


@pytest.mark.parametrize(("asked", "given"), [(None, DEFAULT_MEMORY), (100_000_000, 96 << 20), (1 << 30, 1 << 30)])
def test_memory_is_whole_mebibytes(asked: int | None, given: int) -> None:
    assert memory(Resources(memory=asked)) == given
