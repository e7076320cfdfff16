"""The benchmarks of QEMU run, at the smallest scale, where there is one: without KVM each boots two machines."""

from __future__ import annotations

import pytest
from tests.machines import obtain_or_skip, shared_store

from agentenv.benchmarks.catalogue import load
from agentenv.benchmarks.row import Scale
from agentenv.errors import BackendUnavailable
from agentenv.isolation.artefacts.store import DIRECTORY_VARIABLE


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["qemu-fork", "qemu-checkpoint", "qemu-pause"])
def test_each_measures_one_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    obtain_or_skip("qemu")
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(shared_store().directory))
    try:
        (row,) = load(name)(Scale(0.001))
    except BackendUnavailable as error:
        pytest.skip(f"no QEMU here: {error.message}")
    assert row.name == name
    assert row.value > 0
    assert row.ratio == pytest.approx(row.value / (row.reference_value or 0))
