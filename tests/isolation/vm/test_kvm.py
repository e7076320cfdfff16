"""What is found of KVM: on the machine's own device, and on things that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentenv.isolation.vm import kvm

opens = pytest.mark.skipif(not os.access(kvm.DEVICE, os.R_OK | os.W_OK), reason="/dev/kvm cannot be opened here")


@opens
def test_the_rate_of_this_machine_is_measured_once() -> None:
    found = kvm.native_kvm()
    assert found.usable
    assert found.rate is not None
    assert 1e4 < found.rate < 1e11
    assert kvm.native_kvm().rate == found.rate


@opens
def test_below_the_threshold_it_is_an_emulation_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm, "NATIVE_RATE", 1e12)
    found = kvm.native_kvm()
    assert (found.usable, found.native) == (True, False)
    assert "emulates" in (found.reason or "")
    assert found.remedy


@opens
def test_above_the_threshold_it_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm, "NATIVE_RATE", 1.0)
    found = kvm.native_kvm()
    assert (found.usable, found.native, found.reason) == (True, True, None)


def test_no_device(tmp_path: Path) -> None:
    found = kvm.native_kvm(tmp_path / "kvm")
    assert (found.usable, found.native, found.rate) == (False, False, None)
    assert "there is no" in (found.reason or "")
    assert found.remedy


def test_a_file_in_its_place(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    device.touch()
    found = kvm.native_kvm(device)
    assert not found.usable
    assert "does not work" in (found.reason or "")


def test_another_device_in_its_place() -> None:
    found = kvm.native_kvm(Path("/dev/null"))
    assert not found.usable
    assert "Inappropriate ioctl" in (found.reason or "")
