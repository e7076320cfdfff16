"""What a checkpoint's directory says, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.isolation.qemu import checkpoint
from agentenv.isolation.qemu.checkpoint import DEVICES, FACTS, read_facts, require_disk, require_root, write_facts
from agentenv.isolation.qemu.command import Hardware
from agentenv.isolation.vm.memory_layers import WHOLE as MEMORY

HARDWARE = Hardware("tcg", "max", processors=1, memory=1 << 14, disk=1 << 20, ports=4, network=False)
ROOT = Path("/roots/0123.erofs")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / DEVICES).write_bytes(b"state of devices")
    (tmp_path / MEMORY).write_bytes(bytes(1 << 14))
    write_facts(tmp_path, qemu="7.2.0", hardware=HARDWARE, root=ROOT, free=(1, 3))
    return tmp_path


def test_what_was_written_is_read(directory: Path) -> None:
    facts = read_facts(directory, qemu="7.2.0", accelerator="tcg")
    assert facts.hardware == HARDWARE
    assert facts.free == (1, 3)
    require_root(directory, facts, Path("/elsewhere/0123.erofs"))


@pytest.mark.parametrize(
    ("file", "said"), [(FACTS, "no whole checkpoint"), (DEVICES, "no whole checkpoint"), (MEMORY, "no whole checkpoint")]
)
def test_a_missing_file(directory: Path, file: str, said: str) -> None:
    (directory / file).unlink()
    with pytest.raises(InfrastructureError, match=said):
        read_facts(directory, qemu="7.2.0", accelerator="tcg")


@given(cut=st.data())
def test_a_file_that_was_cut_off(tmp_path_factory: pytest.TempPathFactory, cut: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("cut")
    (directory / DEVICES).write_bytes(b"state of devices")
    (directory / MEMORY).write_bytes(bytes(1 << 14))
    write_facts(directory, qemu="7.2.0", hardware=HARDWARE, root=ROOT, free=(1,))
    path = directory / cut.draw(st.sampled_from([FACTS, DEVICES, MEMORY]))
    content = path.read_bytes()
    path.write_bytes(content[: cut.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(InfrastructureError):
        read_facts(directory, qemu="7.2.0", accelerator="tcg")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 99}, "format 99; this AgentENV reads 1"),
        ({"qemu": "9.0.0"}, "made with QEMU '9.0.0'; here it is '7.2.0'"),
        ({"processor": "an Abacus"}, "made with the processor 'an Abacus'"),
        ({"hardware": {"accelerator": "kvm"}}, "made with the accelerator 'kvm'; here it is 'tcg'"),
    ],
)
def test_a_mismatch_is_one_sentence(directory: Path, change: dict[str, object], said: str) -> None:
    known = json.loads((directory / FACTS).read_text())
    hardware = change.pop("hardware", {})
    assert isinstance(hardware, dict)
    (directory / FACTS).write_text(json.dumps({**known, **change, "hardware": {**known["hardware"], **hardware}}))
    with pytest.raises(CapabilityError, match=said):
        read_facts(directory, qemu="7.2.0", accelerator="tcg")


def test_another_root_and_another_disk_are_refused(directory: Path, tmp_path: Path) -> None:
    facts = read_facts(directory, qemu="7.2.0", accelerator="tcg")
    with pytest.raises(CapabilityError, match=r"the root image '0123\.erofs'; here it is '4567\.erofs'"):
        require_root(directory, facts, Path("4567.erofs"))
    disk = tmp_path / "disk.img"
    with pytest.raises(InfrastructureError, match="is not there"):
        require_disk(facts, disk)
    disk.write_bytes(bytes(1000))
    with pytest.raises(InfrastructureError, match="has 1000 bytes"):
        require_disk(facts, disk)


def test_kvm_remembers_the_processor(directory: Path) -> None:
    write_facts(directory, qemu="7.2.0", hardware=replace(HARDWARE, accelerator="kvm"), root=ROOT, free=(1,))
    assert read_facts(directory, qemu="7.2.0", accelerator="kvm").processor == checkpoint.host_processor()


def test_nothing_is_left_of_one_that_failed(directory: Path) -> None:
    checkpoint.empty(directory)
    assert list(directory.iterdir()) == []
