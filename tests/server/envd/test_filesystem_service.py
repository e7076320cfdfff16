"""Files through the in-sandbox API, in a real sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from tests.server.envd.rpc import Failed, streamed, unary

from agentenv.sandbox import AsyncSandbox
from agentenv.server.envd import watching
from agentenv.server.envd.wire import filesystem_pb2 as wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILESYSTEM = "filesystem.Filesystem"


async def stat(client: httpx.AsyncClient, path: str, **more: str) -> wire.EntryInfo:
    return (await unary(client, f"{FILESYSTEM}/Stat", wire.StatRequest(path=path), wire.StatResponse, **more)).entry


async def listed(client: httpx.AsyncClient, path: str, depth: int = 0) -> list[str]:
    answer = await unary(client, f"{FILESYSTEM}/ListDir", wire.ListDirRequest(path=path, depth=depth), wire.ListDirResponse)
    return [entry.path for entry in answer.entries]


@pytest.mark.parametrize("codec", ["json", "proto"])
async def test_stat_tells_all_of_a_file(http: httpx.AsyncClient, sandbox: AsyncSandbox, codec: str) -> None:
    await sandbox.commands.run(
        "install -m 4750 /dev/null f; echo hello > f; touch -d @1700000000.5 f; mkdir -m 1777 d", cwd="/home/user", user="user", check=True
    )
    entry = await stat(http, "f", codec=codec)
    assert (entry.name, entry.path, entry.size, entry.type) == ("f", "/home/user/f", 6, wire.FILE_TYPE_FILE)
    assert (entry.owner, entry.group, entry.mode) == ("user", "user", 0o750)
    assert entry.permissions in ("urwxr-x---", "-rwxr-x---")  # writing to a file may take its set-user-id bit
    assert entry.modified_time.ToMilliseconds() == 1_700_000_000_500
    assert not entry.HasField("symlink_target")
    directory = await stat(http, "~/d")
    assert (directory.type, directory.permissions) == (wire.FILE_TYPE_DIRECTORY, "dtrwxrwxrwx")


async def test_a_link_is_shown_with_its_target(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    await sandbox.commands.run(
        "mkdir d; echo x > d/f; ln -s d/f one; ln -s one two; ln -s nowhere three; ln -s four four",
        cwd="/home/user",
        user="user",
        check=True,
    )
    two = await stat(http, "two")
    assert (two.is_symlink, two.type, two.mode, two.symlink_target) == (True, wire.FILE_TYPE_FILE, 0o644, "/home/user/d/f")
    assert two.permissions == "Lrwxrwxrwx"
    for broken in ("three", "four"):
        entry = await stat(http, broken)
        assert (entry.is_symlink, entry.type, entry.symlink_target) == (True, wire.FILE_TYPE_UNSPECIFIED, f"/home/user/{broken}")


async def test_directories_are_listed_to_a_depth(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    await sandbox.commands.run(
        "mkdir -p top/a/b top/c; touch top/a/b/deep top/z; ln -s top link", cwd="/home/user", user="user", check=True
    )
    assert await listed(http, "top") == ["/home/user/top/a", "/home/user/top/c", "/home/user/top/z"]
    assert await listed(http, "top", 2) == ["/home/user/top/a", "/home/user/top/a/b", "/home/user/top/c", "/home/user/top/z"]
    assert await listed(http, "link") == ["/home/user/link/a", "/home/user/link/c", "/home/user/link/z"]
    for path, code in (("nothing", "not_found"), ("top/z", "invalid_argument")):
        with pytest.raises(Failed) as failed:
            await listed(http, path)
        assert failed.value.code == code


@pytest.mark.own_sandbox
async def test_directories_are_made_moved_and_removed(http: httpx.AsyncClient) -> None:
    made = await unary(http, f"{FILESYSTEM}/MakeDir", wire.MakeDirRequest(path="x/y"), wire.MakeDirResponse, user="ada")
    assert (made.entry.path, made.entry.owner) == ("/home/ada/x/y", "ada")
    with pytest.raises(Failed) as failed:
        await unary(http, f"{FILESYSTEM}/MakeDir", wire.MakeDirRequest(path="/home/ada/x/y"), wire.MakeDirResponse)
    assert (failed.value.code, failed.value.status) == ("already_exists", 409)
    with pytest.raises(Failed) as failed:
        await unary(http, f"{FILESYSTEM}/MakeDir", wire.MakeDirRequest(path="/etc/passwd"), wire.MakeDirResponse)
    assert failed.value.code == "invalid_argument"
    move = wire.MoveRequest(source="/home/ada/x", destination="/home/ada/new/place")
    moved = await unary(http, f"{FILESYSTEM}/Move", move, wire.MoveResponse, user="ada")
    assert (moved.entry.path, (await stat(http, "/home/ada/new")).owner) == ("/home/ada/new/place", "ada")
    with pytest.raises(Failed) as failed:
        await unary(http, f"{FILESYSTEM}/Move", move, wire.MoveResponse)
    assert failed.value.code == "not_found"
    for _ in range(2):
        await unary(http, f"{FILESYSTEM}/Remove", wire.RemoveRequest(path="/home/ada/new"), wire.RemoveResponse)
    with pytest.raises(Failed) as failed:
        await stat(http, "/home/ada/new")
    assert failed.value.code == "not_found"


async def told(events: AsyncIterator[wire.WatchDirResponse], last: str) -> list[tuple[str, str]]:
    """The kinds and names of changes up to the removal of `last`."""
    found: list[tuple[str, str]] = []
    while not found or found[-1] != ("REMOVE", last):
        event = (await anext(events)).filesystem
        found.append((wire.EventType.Name(event.type).removeprefix("EVENT_TYPE_"), event.name))
    return found


async def test_a_watched_directory_tells_what_changes(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    request = wire.WatchDirRequest(path="~", recursive=True, include_entry=True)
    async with streamed(http, f"{FILESYSTEM}/WatchDir", [request], wire.WatchDirResponse) as events:
        assert (await anext(events)).WhichOneof("event") == "start"
        await sandbox.commands.run("echo 1 > f", cwd="/home/user", check=True)
        created, written = (await anext(events)).filesystem, (await anext(events)).filesystem
        assert (created.name, created.type, created.entry.path) == ("f", wire.EVENT_TYPE_CREATE, "/home/user/f")
        assert written.type == wire.EVENT_TYPE_WRITE
        await sandbox.commands.run("mv f g; rm g", cwd="/home/user", check=True)
        assert await told(events, "g") == [("RENAME", "f"), ("CREATE", "g"), ("REMOVE", "g")]


async def test_an_upload_is_told_as_writing(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    async with streamed(http, f"{FILESYSTEM}/WatchDir", [wire.WatchDirRequest(path="~")], wire.WatchDirResponse) as events:
        await anext(events)
        for content in (b"first", b"second"):
            (await http.post("/files", params={"path": "up"}, files={"file": content})).raise_for_status()
            await sandbox.commands.run("touch mark; rm mark", cwd="/home/user", check=True)
            seen = [change for change in await told(events, "mark") if change[1] != "mark"]
            assert seen == ([("CREATE", "up"), ("WRITE", "up")] if content == b"first" else [("WRITE", "up")])


async def test_a_watch_shows_that_it_lives(http: httpx.AsyncClient) -> None:
    path, more = f"{FILESYSTEM}/WatchDir", {"keepalive_ping_interval": "1"}
    async with streamed(http, path, [wire.WatchDirRequest(path="/tmp")], wire.WatchDirResponse, **more) as events:
        kinds = [(await anext(events)).WhichOneof("event") for _ in range(2)]
    assert kinds == ["start", "keepalive"]


async def test_watchers_are_asked_and_end(http: httpx.AsyncClient, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MAX_WATCHERS", 1)
    create = wire.CreateWatcherRequest(path="/tmp")
    watcher = (await unary(http, f"{FILESYSTEM}/CreateWatcher", create, wire.CreateWatcherResponse)).watcher_id
    with pytest.raises(Failed, match="remove some"):
        await unary(http, f"{FILESYSTEM}/CreateWatcher", create, wire.CreateWatcherResponse)
    await sandbox.commands.run("mkdir /tmp/d", check=True)
    ask = wire.GetWatcherEventsRequest(watcher_id=watcher)
    names: list[str] = []
    while not names:
        names += [event.name for event in (await unary(http, f"{FILESYSTEM}/GetWatcherEvents", ask, wire.GetWatcherEventsResponse)).events]
    assert names == ["d"]
    await unary(http, f"{FILESYSTEM}/RemoveWatcher", wire.RemoveWatcherRequest(watcher_id=watcher), wire.RemoveWatcherResponse)
    with pytest.raises(Failed) as failed:
        await unary(http, f"{FILESYSTEM}/GetWatcherEvents", ask, wire.GetWatcherEventsResponse)
    assert failed.value.code == "not_found"


@pytest.mark.parametrize(("path", "code"), [("nothing", "not_found"), ("/etc/passwd", "invalid_argument"), ("~ada/x", "invalid_argument")])
async def test_only_directories_are_watched(http: httpx.AsyncClient, path: str, code: str) -> None:
    with pytest.raises(Failed) as failed:
        async with streamed(http, f"{FILESYSTEM}/WatchDir", [wire.WatchDirRequest(path=path)], wire.WatchDirResponse) as events:
            await anext(events)
    assert failed.value.code == code
