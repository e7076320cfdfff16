"""The benchmarks of Firecracker run, at the smallest scale, where a virtual machine can be made and there is a Firecracker."""

from __future__ import annotations

import pytest
from tests.machines import obtain_or_skip

from agentenv.benchmarks import firecracker
from agentenv.benchmarks.catalogue import load
from agentenv.benchmarks.row import Scale
from agentenv.errors import BackendUnavailable
from agentenv.isolation.vm.kvm import KvmFinding, native_kvm

ROWS = {
    "firecracker-restore": ["firecracker-restore"],
    "firecracker-fork": ["firecracker-fork", "firecracker-fork-memory"],
    "firecracker-pause": ["firecracker-pause"],
}


@pytest.mark.parametrize("name", ROWS)
def test_each_measures_its_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = native_kvm()
    if not found.usable:
        pytest.skip(f"no virtual machines here: {found.reason}")
    for program in ("firecracker", "jailer"):
        monkeypatch.setenv(f"AGENTENV_{program.upper()}", str(obtain_or_skip(program)))
    try:
        rows = list(load(name)(Scale(0.001)))
    except BackendUnavailable as error:
        pytest.skip(f"no virtual machines here: {error.message}")
    assert [row.name for row in rows] == ROWS[name]
    for row in rows:
        assert row.value > 0
        assert row.ratio == pytest.approx(row.value / (row.reference_value or 0))


def test_without_kvm_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firecracker, "native_kvm", lambda: KvmFinding(usable=False, native=False, reason="there is none."))
    with pytest.raises(BackendUnavailable, match=r"no virtual machine can be made: there is none\."):
        list(load("firecracker-pause")(Scale(0.001)))
