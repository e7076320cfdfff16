"""Real images, whole and cut off."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentenv.errors import InfrastructureError
from agentenv.isolation.vm.disk import find_tool
from agentenv.isolation.vm.superblock import Filesystem, require_whole

MAKERS: dict[Filesystem, str] = {"erofs": "mkfs.erofs", "squashfs": "mksquashfs"}


@pytest.fixture(params=list(MAKERS))
def filesystem(request: pytest.FixtureRequest) -> Filesystem:
    found: Filesystem = request.param
    return found


@pytest.fixture
def image(filesystem: Filesystem, tmp_path: Path) -> Path:
    program = find_tool(MAKERS[filesystem])
    if program is None:
        pytest.skip(f"no {MAKERS[filesystem]}")
    tree, target = tmp_path / "tree", tmp_path / "image"
    tree.mkdir()
    (tree / "file").write_bytes(os.urandom(20_000))
    words = [target, tree] if filesystem == "erofs" else [tree, target, "-quiet"]
    subprocess.run([program, *map(str, words)], check=True, capture_output=True)
    return target


def test_a_whole_image_passes(image: Path, filesystem: Filesystem) -> None:
    require_whole(image, filesystem)
    with image.open("ab") as file:
        file.write(b"\0" * 5000)
    require_whole(image, filesystem)


@given(share=st.floats(min_value=0.1, max_value=0.85))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
def test_wherever_it_is_cut_off_it_is_told(image: Path, filesystem: Filesystem, share: float) -> None:
    whole = image.read_bytes()
    try:
        os.truncate(image, int(len(whole) * share))
        with pytest.raises(InfrastructureError, match=rf"{image} holds \d+ bytes of {filesystem} but has only \d+: it was cut off"):
            require_whole(image, filesystem)
    finally:
        image.write_bytes(whole)


@pytest.mark.parametrize("content", [b"", b"\0" * 1500, b"#!/bin/sh\n" * 500], ids=["empty", "zeros", "a script"])
def test_what_is_no_image(tmp_path: Path, filesystem: Filesystem, content: bytes) -> None:
    other = tmp_path / "other"
    other.write_bytes(content)
    with pytest.raises(InfrastructureError, match=f"other is no {filesystem} image") as caught:
        require_whole(other, filesystem)
    assert caught.value.remedy is not None
