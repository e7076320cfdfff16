"""Files: read, written, listed, changed and removed through the agent."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.native.client import CANCEL, DATA, AgentError, Client, ConnectionClosed
from tests.native.conftest import StartAgent

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to another user")


def write(client: Client, path: Path | str | bytes, content: bytes, **parameters: Any) -> dict[str, Any]:
    stream = client.open("write", path=path if isinstance(path, bytes) else str(path), **parameters)
    client.upload(stream, content)
    return client.finish(stream).result


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def code_of(client: Client, op: str, **parameters: Any) -> str:
    with pytest.raises(AgentError) as caught:
        client.call(op, **parameters)
    return caught.value.code


@pytest.mark.parametrize("size", [0, 1, 65_536, 3_000_001])
def test_what_is_written_is_read(client: Client, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    assert write(client, tmp_path / "file", content) == {"size": size}
    assert (tmp_path / "file").read_bytes() == content
    outcome = client.call("read", path=str(tmp_path / "file"))
    assert outcome.data == content
    assert outcome.result == {"size": size}
    assert names_in(tmp_path) == {"file"}


def test_read_a_part(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(200)))
    path = str(tmp_path / "file")
    assert client.call("read", path=path, offset=10, length=5).data == bytes(range(10, 15))
    assert client.call("read", path=path, offset=190, length=50).data == bytes(range(190, 200))
    assert client.call("read", path=path, offset=1000).data == b""
    assert client.call("read", path=path, length=0).data == b""


def test_read_what_has_no_size(client: Client) -> None:
    assert client.call("read", path="/proc/self/comm").data.startswith(b"agent")
    assert len(client.call("read", path="/dev/zero", length=1000).data) == 1000


def test_read_within_credit(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1_000_000))
    client.grants = False
    stream = client.open("read", path=str(tmp_path / "file"))
    received = 0
    while received < 262_144:
        kind, body = client.receive(stream)
        assert kind == DATA
        received += len(body)
    assert received == 262_144
    assert client.call("ping", payload=b"still here").result == {"payload": b"still here"}
    client.send(stream, CANCEL)
    with pytest.raises(AgentError, match="ECANCELED"):
        client.finish(stream)


def test_read_faults(client: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert code_of(client, "read", path=str(tmp_path / "missing")) == "ENOENT"
    assert code_of(client, "read", path=str(tmp_path)) == "EISDIR"
    assert code_of(client, "read", path=str(tmp_path / "fifo")) == "EINVAL"
    assert code_of(client, "read", path="") == "ENOENT"
    assert code_of(client, "read", path="x" * 5000) == "ENAMETOOLONG"
    assert code_of(client, "read", path="/" + "x" * 300) == "ENAMETOOLONG"
    assert code_of(client, "read", path="a\0b") == "EPROTO"
    assert code_of(client, "read") == "EPROTO"
    assert code_of(client, "read", path="/etc/passwd", offset=-1) == "EPROTO"


@needs_root
def test_read_as_another_user(client: Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.geteuid() and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o755)
    assert code_of(client, "read", path=str(secret), user="nobody") == "EACCES"
    assert client.call("read", path=str(secret)).data == b"secret"
    assert client.call("read", path="/etc/passwd", user="nobody").data


def test_write_keeps_mode_and_owner(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text("old")
    path.chmod(0o751)
    if os.geteuid() == 0:
        os.chown(path, 1, 2)
    write(client, path, b"new")
    info = path.stat()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(info.st_mode) == 0o751
    if os.geteuid() == 0:
        assert (info.st_uid, info.st_gid) == (1, 2)
    write(client, path, b"newer", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_write_makes_parents(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    stream = client.open("write", path=str(path))
    with pytest.raises(AgentError, match="ENOENT"):
        client.finish(stream)
    write(client, path, b"x", parents=True, mode=0o640)
    assert path.read_bytes() == b"x"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755


@needs_root
def test_write_for_another_user(client: Client, tmp_path: Path) -> None:
    write(client, tmp_path / "home" / "file", b"x", parents=True, user="nobody")
    for path in (tmp_path / "home", tmp_path / "home" / "file"):
        assert path.owner() == "nobody"
    write(client, tmp_path / "number", b"x", user=1234)
    assert (tmp_path / "number").stat().st_uid == 1234


def test_write_through_links(client: Client, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    (tmp_path / "link").symlink_to("middle")
    (tmp_path / "middle").symlink_to("real/file")
    write(client, tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"new"
    (tmp_path / "dangling").symlink_to("real/fresh")
    write(client, tmp_path / "dangling", b"made")
    assert (tmp_path / "real" / "fresh").read_bytes() == b"made"
    (tmp_path / "loop").symlink_to("loop")
    assert code_of(client, "write", path=str(tmp_path / "loop")) == "ELOOP"


def test_append(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert write(client, path, b"one\n", append=True) == {"size": 4}
    write(client, path, b"two\n", append=True)
    assert path.read_bytes() == b"one\ntwo\n"
    assert names_in(tmp_path) == {"log"}


def test_write_to_what_cannot_be_replaced(client: Client) -> None:
    write(client, "/dev/null", b"gone")
    assert Path("/dev/null").is_char_device()
    assert code_of(client, "write", path="/") == "EISDIR"
    assert code_of(client, "write", path="/proc/nothing") == "ENOENT"


@pytest.mark.parametrize("how", ["cancel", "break"])
def test_a_broken_upload_leaves_the_old_file(start_agent: StartAgent, tmp_path: Path, how: str) -> None:
    agent = start_agent()
    path = tmp_path / "file"
    path.write_text("old")
    stream = agent.client.open("write", path=str(path))
    agent.client.send(stream, DATA, b"half")
    if how == "cancel":
        agent.client.send(stream, CANCEL)
        with pytest.raises(AgentError, match="ECANCELED"):
            agent.client.finish(stream)
    else:
        agent.client.socket.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionClosed):
            agent.client.receive(stream)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == {"file"}


def test_a_full_disk(as_init: Any) -> None:
    client = as_init.client
    client.run("sh", "-c", "mkdir /run/small && mount -t tmpfs -o size=64k none /run/small")
    stream = client.open("write", path="/run/small/file")
    client.send(stream, DATA, bytes(200_000))
    with pytest.raises(AgentError) as caught:
        client.finish(stream)
    assert caught.value.code == "ENOSPC"
    assert client.call("list", path="/run/small").result == {"count": 0}


def test_stat(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("12345")
    path.chmod(0o640)
    os.utime(path, (1_000_000_000, 1_000_000_000.5))
    entry = client.call("stat", path=str(path)).result
    assert entry["name"] == "file"
    assert entry["path"] == str(path)
    assert (entry["type"], entry["size"], entry["mode"], entry["mtime"]) == ("file", 5, 0o640, 1_000_000_000.5)
    assert (entry["uid"], entry["gid"], entry["target"]) == (os.geteuid(), os.getegid(), None)
    assert (entry["user"], entry["group"]) == (path.owner(), path.group())


def test_stat_types(client: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        types = {
            str(tmp_path): "dir",
            str(tmp_path / "fifo"): "fifo",
            str(tmp_path / "socket"): "socket",
            "/dev/null": "char",
            "/proc/self/exe": "file",
            "/": "dir",
        }
        for path, kind in types.items():
            assert client.call("stat", path=path).result["type"] == kind
    link = client.call("stat", path=str(tmp_path / "link"), follow=False).result
    assert (link["type"], link["target"]) == ("symlink", "nowhere")
    assert code_of(client, "stat", path=str(tmp_path / "link")) == "ENOENT"
    assert client.call("stat", path="/").result["name"] == "/"


def entries_of(client: Client, path: Path, **parameters: Any) -> dict[str, dict[str, Any]]:
    outcome = client.call("list", path=str(path), **parameters)
    entries = [entry for event in outcome.events for entry in event["entries"]]
    assert len(entries) == outcome.result["count"]
    return {entry["path"]: entry for entry in entries}


def test_list(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "link").symlink_to("a")
    assert set(entries_of(client, tmp_path)) == {str(tmp_path / name) for name in ("a", "link")}
    deep = entries_of(client, tmp_path, depth=9)
    assert set(deep) == {str(tmp_path / name) for name in ("a", "link", "a/b", "a/b/c", "a/file")}
    assert deep[str(tmp_path / "link")]["target"] == "a"
    assert set(entries_of(client, tmp_path, depth=2)) == set(deep) - {str(tmp_path / "a/b/c")}
    assert code_of(client, "list", path=str(tmp_path / "a/file")) == "ENOTDIR"
    assert code_of(client, "list", path=str(tmp_path), depth=0) == "EPROTO"


def test_list_many(client: Client, tmp_path: Path) -> None:
    for i in range(5000):
        (tmp_path / f"file-with-a-long-name-{i}").touch()
    assert len(entries_of(client, tmp_path)) == 5000


def test_names_that_are_not_utf8(client: Client, tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/caf\xe9"
    write(client, raw, b"x")
    assert {os.fsencode(name) for name in names_in(tmp_path)} == {b"caf\xe9"}
    (entry,) = entries_of(client, tmp_path).values()
    assert (entry["name"], entry["path"]) == (b"caf\xe9", raw)
    assert client.call("read", path=raw).data == b"x"


def test_mkdir(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "one"
    assert client.call("mkdir", path=str(path), mode=0o700).result == {"created": True}
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert client.call("mkdir", path=str(path)).result == {"created": False}
    assert code_of(client, "mkdir", path=str(path / "a" / "b")) == "ENOENT"
    assert client.call("mkdir", path=str(path / "a" / "b"), parents=True).result == {"created": True}
    (path / "file").touch()
    assert code_of(client, "mkdir", path=str(path / "file")) == "ENOTDIR"


def test_rename_symlink_chmod(client: Client, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    assert client.call("rename", path=str(tmp_path / "old"), to=str(tmp_path / "new")).result == {}
    client.call("symlink", path=str(tmp_path / "link"), target="new")
    assert str((tmp_path / "link").readlink()) == "new"
    client.call("chmod", path=str(tmp_path / "link"), mode=0o604)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604
    assert code_of(client, "rename", path=str(tmp_path / "old"), to=str(tmp_path / "x")) == "ENOENT"
    assert code_of(client, "symlink", path=str(tmp_path / "link"), target="new") == "EEXIST"
    assert code_of(client, "chmod", path=str(tmp_path / "new"), mode=0o100000) == "EPROTO"


@needs_root
def test_chown(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    client.call("chown", path=str(tmp_path / "file"), user="nobody")
    assert (tmp_path / "file").owner() == "nobody"
    assert code_of(client, "chown", path=str(tmp_path / "file"), user="ghost") == "ENOENT"


def test_remove(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "full" / "file").touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (tmp_path / "full" / "link").symlink_to(tmp_path / "outside")
    client.call("remove", path=str(tmp_path / "file"))
    client.call("remove", path=str(tmp_path / "empty"))
    assert code_of(client, "remove", path=str(tmp_path / "full")) == "ENOTEMPTY"
    client.call("remove", path=str(tmp_path / "full"), recursive=True)
    assert names_in(tmp_path) == {"outside"}
    assert (tmp_path / "outside" / "kept").exists()
    assert code_of(client, "remove", path=str(tmp_path / "full")) == "ENOENT"
    client.call("remove", path=str(tmp_path / "full"), missing_ok=True)
    client.call("remove", path=str(tmp_path / "full"), missing_ok=True, recursive=True)
    assert code_of(client, "remove", path="/", recursive=True) == "EBUSY"


def test_remove_a_link_to_a_directory(client: Client, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to("kept")
    client.call("remove", path=str(tmp_path / "link"), recursive=True)
    assert names_in(tmp_path) == {"kept"}


def test_extended_attributes_are_replaced_and_told(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    try:
        os.setxattr(path, "user.other", b"stays")
    except OSError:
        pytest.skip("the file system of the tests has no extended attributes")
    os.setxattr(path, "user.x.binary", b"\xff\0")
    given = {"a": "1", "b c": "two words"}
    client.call("attributes", path=str(path), prefix="user.x.", values={"old": "1"})
    client.call("attributes", path=str(path), prefix="user.x.", values=given)
    assert client.call("stat", path=str(path), attributes="user.x.").result["attributes"] == given
    assert "attributes" not in client.call("stat", path=str(path)).result
    assert os.getxattr(path, "user.other") == b"stays"
    os.setxattr(path, "user.x.binary", b"\xff\0")
    (entry,) = client.call("list", path=str(tmp_path), attributes="user.x.").events[0]["entries"]
    assert entry["attributes"] == given
    for prefix, values, code in (("trusted.x", {}, "EINVAL"), ("user.x.", {"": "1"}, "EPROTO"), ("user.x.", {"a": "\n"}, "EPROTO")):
        assert code_of(client, "attributes", path=str(path), prefix=prefix, values=values) == code
    assert code_of(client, "attributes", path=str(path), prefix="user.x.") == "EPROTO"
    assert code_of(client, "attributes", path=str(tmp_path / "missing"), prefix="user.x.", values={}) == "ENOENT"
