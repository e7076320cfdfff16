"""Overlays that only one thread and its children see."""

from __future__ import annotations

import errno
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conditions import needs_root

from agentenv.isolation.contract import Tree
from agentenv.isolation.gvisor import mounts

pytestmark = needs_root


def in_private_namespace(action: Callable[[], str]) -> str:
    """What `action` returns or raises in a thread with mounts of its own."""
    came: list[str | OSError] = []

    def run() -> None:
        try:
            mounts.enter_private_namespace()
            came.append(action())
        except OSError as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    (result,) = came
    if isinstance(result, OSError):
        raise result
    return result


def layers(directory: Path, count: int) -> Tree:
    lowers = tuple(directory / f"l{number}" for number in range(count))
    for number, lower in enumerate(lowers):
        lower.mkdir()
        (lower / f"f{number}").write_text(str(number))
        (lower / "same").write_text(str(number))
    for name in ("upper", "work", "target"):
        (directory / name).mkdir()
    return Tree("/", "@", lowers)


@pytest.mark.parametrize("old_kernel", [False, True])
def test_all_layers_are_seen_by_children_and_by_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old_kernel: bool) -> None:
    tree = layers(tmp_path, 20)
    if old_kernel:

        def refuse(*_: object) -> None:
            raise OSError(errno.EINVAL, "no lowerdir+")

        monkeypatch.setattr(mounts, "_name_by_standing", refuse)

    def look() -> str:
        mounts.mount_overlay(tree, tmp_path / "upper", tmp_path / "work", tmp_path / "target")
        script = "cat f0 f19 same; echo new > new; grep -c ' - overlay ' /proc/self/mountinfo >/dev/null"
        return subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path / "target", capture_output=True, text=True, check=True).stdout

    assert in_private_namespace(look) == "0190"
    assert (tmp_path / "upper/new").read_text() == "new\n"
    assert list((tmp_path / "target").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    tree = Tree("/", "@", (tmp_path / "missing",))
    with pytest.raises(FileNotFoundError, match="missing"):
        in_private_namespace(lambda: str(mounts.mount_overlay(tree, tmp_path, tmp_path, tmp_path)))


def test_a_file_is_covered_for_this_thread_only(tmp_path: Path) -> None:
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    shown.write_text("shown")
    hidden.write_text("hidden")

    def look() -> str:
        mounts.cover(hidden, shown)
        return hidden.read_text()

    assert in_private_namespace(look) == "shown"
    assert hidden.read_text() == "hidden"
