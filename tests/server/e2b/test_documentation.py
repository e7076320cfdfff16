"""docs/e2b.md against the SDK: every public method has its line, and what it says works is used by the tests."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import e2b
import e2b_code_interpreter
import pytest
from e2b.sandbox_async.commands.command import Commands as AsyncCommands
from e2b.sandbox_async.commands.pty import Pty as AsyncPty
from e2b.sandbox_async.filesystem.filesystem import Filesystem as AsyncFilesystem
from e2b.sandbox_async.git import Git as AsyncGit
from e2b.sandbox_sync.commands.command import Commands
from e2b.sandbox_sync.commands.pty import Pty
from e2b.sandbox_sync.filesystem.filesystem import Filesystem
from tests.server.e2b import test_javascript_sdk, test_python_sdk

HERE = Path(__file__).parent
TEXT = (HERE.parents[2] / "docs" / "e2b.md").read_text()
ROWS = {call: (here, why) for call, here, why in re.findall(r"^\| `([\w.]+)` \| (yes|no) \| (.*?) ?\|$", TEXT, re.MULTILINE)}
USED = "".join(
    (HERE / name).read_text()
    for name in ("tour.py", "tour_async.py", "../templates/test_remote_builds.py", "../templates/test_private_registries.py")
)
CLASSES: dict[str, tuple[type, ...]] = {
    "Sandbox": (e2b.Sandbox, e2b.AsyncSandbox),
    "Sandbox.commands": (Commands, AsyncCommands),
    "Sandbox.files": (Filesystem, AsyncFilesystem),
    "Sandbox.pty": (Pty, AsyncPty),
    "Sandbox.git": (e2b.Git, AsyncGit),
    "CommandHandle": (e2b.CommandHandle, e2b.AsyncCommandHandle),
    "CommandInputHandle": (e2b.AsyncCommandInputHandle,),
    "WatchHandle": (e2b.WatchHandle, e2b.AsyncWatchHandle),
    "SandboxPaginator": (e2b.SandboxPaginator, e2b.AsyncSandboxPaginator),
    "SnapshotPaginator": (e2b.SnapshotPaginator, e2b.AsyncSnapshotPaginator),
    "Template": (e2b.Template, e2b.AsyncTemplate),
    "Secret": (e2b.Secret, e2b.AsyncSecret),
    "SecretPaginator": (e2b.SecretPaginator, e2b.AsyncSecretPaginator),
    "Volume": (e2b.Volume, e2b.AsyncVolume),
    "CodeInterpreter": (e2b_code_interpreter.Sandbox, e2b_code_interpreter.AsyncSandbox),
}
INHERITED = {"CodeInterpreter": (e2b.Sandbox, e2b.AsyncSandbox)}


def methods(cls: type) -> set[str]:
    members = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
    return {name for name, member in members.items() if callable(member) or isinstance(member, property)}


@pytest.mark.parametrize("name", CLASSES)
def test_every_method_has_its_line(name: str) -> None:
    written = {call.rpartition(".")[2] for call in ROWS if call.rpartition(".")[0] == name}
    inherited = {method for cls in INHERITED.get(name, ()) for method in methods(cls)}
    assert written == {method for cls in CLASSES[name] for method in methods(cls)} - inherited


def test_what_works_is_used() -> None:
    # `async with` closes a handle for input.
    unused = [call for call, (here, _) in ROWS.items() if here == "yes" and not re.search(rf'[."]{call.rpartition(".")[2]}\b', USED)]
    assert unused == ["CommandInputHandle.close"]


def test_what_does_not_work_says_why() -> None:
    assert [call for call, (here, why) in ROWS.items() if here == "no" and not why] == []


def test_the_versions_are_those_that_are_tested() -> None:
    listed = re.findall(r"^\| `[\w-]+` \((?:Python|npm)\) \| ([\d.]+) \|", TEXT, re.MULTILINE)
    others = [test_python_sdk.OLDEST.partition("==")[2], test_javascript_sdk.PACKAGE.partition("@")[2]]
    assert listed == [version("e2b"), *others, version("e2b-code-interpreter")]
