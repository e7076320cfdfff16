"""Modules of a made-up kernel: small ELF files with nothing but the section that says what they need."""

from __future__ import annotations

import lzma
import re
import struct
from pathlib import Path

import pytest

from agentenv.errors import InfrastructureError
from agentenv.isolation.vm.initramfs import build_initramfs
from agentenv.isolation.vm.modules import ModuleTree, dependencies


def module(depends: str) -> bytes:
    """An ELF file with the sections: none, `.modinfo`, and the names of sections."""
    info, names = f"license=GPL\0depends={depends}\0".encode(), b"\0.modinfo\0.shstrtab\0"
    table = 64 + len(info) + len(names)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    sections = [(0,) * 10, (1, 1, 0, 0, 64, len(info), 0, 0, 1, 0), (10, 3, 0, 0, 64 + len(info), len(names), 0, 0, 1, 0)]
    return header + info + names + b"".join(struct.pack("<IIQQQQIIQQ", *section) for section in sections)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    kernel = tmp_path / "kernel"
    kernel.mkdir()
    (kernel / "top.ko").write_bytes(module("left,right-hand"))
    (kernel / "left.ko.xz").write_bytes(lzma.compress(module("bottom")))
    (kernel / "right-hand.ko").write_bytes(module("bottom,solid"))
    (kernel / "bottom.ko").write_bytes(module(""))
    (tmp_path / "modules.builtin").write_text("kernel/fs/solid.ko\n")
    return tmp_path


def test_each_comes_after_what_it_needs(tree: Path) -> None:
    assert [name for name, _ in ModuleTree(tree).in_order(["top"])] == ["bottom", "left", "right_hand", "top"]
    assert [name for name, _ in ModuleTree(tree).in_order(["right_hand", "left", "solid"])] == ["bottom", "right_hand", "left"]


def test_compressed_ones_are_unpacked(tree: Path) -> None:
    assert dict(ModuleTree(tree).in_order(["left"]))["left"] == module("bottom")


def test_a_missing_one_is_named(tree: Path) -> None:
    with pytest.raises(InfrastructureError, match="has no module overlay"):
        ModuleTree(tree).in_order(["overlay"])


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InfrastructureError, match="no 64-bit ELF"):
        dependencies(b"text")


def test_an_initramfs_has_the_same_bytes_each_time(tree: Path, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.write_bytes(b"the agent")
    first = build_initramfs(agent, tree, ("left",), tmp_path / "a", later=("top",))
    second = build_initramfs(agent, tree, ("left",), tmp_path / "b", later=("top",))
    assert first.modules == ("bottom", "left", "right_hand", "top")
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.path.name == second.path.name
    assert re.findall(rb"(?:modules|later)/[0-9a-z_.-]+", first.path.read_bytes()) == [
        b"modules/00-bottom.ko",
        b"modules/01-left.ko",
        b"later/02-right_hand.ko",
        b"later/03-top.ko",
    ]
    assert build_initramfs(agent, None, ("top",), tmp_path / "a").modules == ()
