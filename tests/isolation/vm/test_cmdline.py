"""What the kernel is told."""

from __future__ import annotations

import pytest

from agentenv.errors import ConfigError
from agentenv.isolation.vm import GuestConfig, GuestNetwork, Platform


def test_everything_is_passed_on() -> None:
    network = GuestNetwork("10.0.0.2/30", "10.0.0.1", ("1.1.1.1", "9.9.9.9"))
    config = GuestConfig("box", "vsock", tmpfs_upper=4096, network=network, pids=100, machine_id="ab" * 16)
    words = config.command_line(Platform.FIRECRACKER, "debug").split()
    assert words[words.index("debug") + 1 :] == [
        "agentenv.transport=vsock:1024",
        "agentenv.hostname=box",
        "agentenv.upper=tmpfs:4096",
        "agentenv.ip=eth0,10.0.0.2/30,10.0.0.1",
        "agentenv.dns=1.1.1.1,9.9.9.9",
        "agentenv.pids=100",
        f"agentenv.machine_id={'ab' * 16}",
    ]
    assert {"panic=-1", "reboot=k", "pci=off", "console=ttyS0"} <= set(words)


def test_little_is_needed() -> None:
    line = GuestConfig("box", "serial").command_line(Platform.QEMU_KVM)
    assert line.endswith("agentenv.transport=serial agentenv.hostname=box")
    assert "tsc_early_khz" not in line


def test_without_kvm_the_speed_of_the_counter_is_told() -> None:
    words = dict(word.split("=") for word in GuestConfig("box", "serial").command_line(Platform.QEMU_TCG).split() if word.count("=") == 1)
    assert 100_000 < int(words["tsc_early_khz"]) < 20_000_000
    assert words["tsc"] == "reliable"


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (GuestConfig("two words", "serial"), "no host name"),
        (GuestConfig("", "serial"), "no host name"),
        (GuestConfig("box", "serial", machine_id="short"), "no machine-id"),
        (GuestConfig("box", "serial", network=GuestNetwork("10.0.0.2", "10.0.0.1")), "prefix length"),
        (GuestConfig("box", "serial", network=GuestNetwork("10.0.0.2/30", "gate")), "cannot be set up"),
        (GuestConfig("box", "serial", network=GuestNetwork("fd00::2/64", "fd00::1")), "cannot be set up"),
    ],
)
def test_what_cannot_be_passed_on_is_refused(config: GuestConfig, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        config.command_line(Platform.QEMU_KVM)


def test_a_line_that_the_kernel_would_cut_off_is_refused() -> None:
    with pytest.raises(ConfigError, match="2047"):
        GuestConfig("box", "serial").command_line(Platform.QEMU_KVM, "x" * 2048)
