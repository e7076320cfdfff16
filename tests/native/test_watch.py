"""Watching files and trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.native.client import CANCEL, AgentError, Client


def start(client: Client, path: Path, **parameters: Any) -> int:
    stream = client.open("watch", path=str(path), **parameters)
    assert client.event(stream) == {"event": "ready"}
    return stream


def changes_until(client: Client, stream: int, kind: str, path: Path) -> list[tuple[str, str]]:
    """All changes up to the awaited one."""
    seen: list[tuple[str, str]] = []
    while (kind, str(path)) not in seen:
        event = client.event(stream)
        assert event["event"] == "change"
        seen.append((event["type"], event["path"]))
    return seen


def test_every_kind_of_change(client: Client, tmp_path: Path) -> None:
    stream = start(client, tmp_path)
    path = tmp_path / "file"
    path.touch()
    changes_until(client, stream, "create", path)
    path.write_text("x")
    changes_until(client, stream, "write", path)
    path.chmod(0o600)
    changes_until(client, stream, "chmod", path)
    path.rename(tmp_path / "other")
    assert ("rename", str(path)) in changes_until(client, stream, "create", tmp_path / "other")
    (tmp_path / "other").unlink()
    changes_until(client, stream, "remove", tmp_path / "other")
    client.send(stream, CANCEL)
    assert client.finish(stream).result == {}


def test_without_recursive_only_the_directory(client: Client, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    stream = start(client, tmp_path)
    (tmp_path / "sub" / "below").touch()
    (tmp_path / "last").touch()
    assert changes_until(client, stream, "create", tmp_path / "last")[0] == ("create", str(tmp_path / "last"))


def test_a_tree(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    stream = start(client, tmp_path, recursive=True)
    (tmp_path / "a" / "b" / "file").touch()
    changes_until(client, stream, "create", tmp_path / "a/b/file")
    (tmp_path / "new" / "deep").mkdir(parents=True)
    (tmp_path / "new" / "deep" / "first").touch()
    changes_until(client, stream, "create", tmp_path / "new/deep/first")
    (tmp_path / "new" / "deep" / "second").touch()
    changes_until(client, stream, "create", tmp_path / "new/deep/second")


def test_a_moved_directory_is_told_by_its_new_name(client: Client, tmp_path: Path) -> None:
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    stream = start(client, tmp_path / "tree", recursive=True)
    (tmp_path / "tree/a").rename(tmp_path / "tree/z")
    changes_until(client, stream, "create", tmp_path / "tree/z")
    # The new watches are in place when something that was done after them is told; until then the file is made anew.
    seen: list[tuple[str, str]] = []
    while ("create", str(tmp_path / "tree/z/b/file")) not in seen:
        (tmp_path / "tree/z/b/file").touch()
        (tmp_path / "tree/z/b/file").unlink()
        (tmp_path / "tree/mark").touch()
        (tmp_path / "tree/mark").unlink()
        seen += changes_until(client, stream, "remove", tmp_path / "tree/mark")
    assert not [path for _, path in seen if path.startswith(str(tmp_path / "tree/a/"))]
    (tmp_path / "tree/z").rename(tmp_path / "elsewhere")
    changes_until(client, stream, "rename", tmp_path / "tree/z")
    (tmp_path / "elsewhere/b/unseen").touch()
    (tmp_path / "tree/last").touch()
    told = changes_until(client, stream, "create", tmp_path / "tree/last")
    assert not [path for _, path in told if "unseen" in path]


def test_a_file_that_is_replaced(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.touch()
    (tmp_path / "neighbour").touch()
    stream = start(client, path)
    (tmp_path / "neighbour").write_text("x")
    (tmp_path / "fresh").write_text("y")
    (tmp_path / "fresh").rename(path)
    assert {changed for _, changed in changes_until(client, stream, "create", path)} == {str(path)}
    path.write_text("z")
    changes_until(client, stream, "write", path)


def test_the_end_of_what_is_watched(client: Client, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    stream = start(client, tmp_path / "dir")
    (tmp_path / "dir").rmdir()
    outcome = client.finish(stream)
    assert [(event["type"], event["path"]) for event in outcome.events] == [("remove", str(tmp_path / "dir"))]


def test_a_large_tree_and_many_changes(client: Client, tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / f"d{i}").mkdir()
    stream = start(client, tmp_path, recursive=True)
    for i in range(200):
        for name in "abc":
            (tmp_path / f"d{i}" / name).touch()
    (tmp_path / "last").mkdir()
    seen = changes_until(client, stream, "create", tmp_path / "last")
    assert len([1 for kind, _ in seen if kind == "create"]) == 601


def test_faults(client: Client, tmp_path: Path) -> None:
    with pytest.raises(AgentError) as caught:
        client.call("watch", path=str(tmp_path / "missing"))
    assert caught.value.code == "ENOENT"
