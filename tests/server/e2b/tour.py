"""Uses every method of the E2B Python SDK's synchronous face that this server has, and checks what each gives.

It is run by the tests in their own process, and as a program (`python tour.py`) by other versions of the SDK. The server is named by E2B's
own variables: E2B_API_URL, E2B_SANDBOX_URL, E2B_API_KEY.
"""

from __future__ import annotations

import io
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from e2b import (
    CommandExitException,
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    Template,
    TemplateBuildStatus,
    TimeoutException,
)

Found = TypeVar("Found")


def until(look: Callable[[], Found], seconds: float = 20.0) -> Found:
    """What `look` gives as soon as that is something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


def raises(kind: type[BaseException], call: Callable[[], Any]) -> BaseException:
    """The error that a call must raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def commands_in_the_foreground(sandbox: Sandbox) -> None:
    seen: list[str] = []
    result = sandbox.commands.run(
        "echo out; echo err >&2; echo $A; pwd", envs={"A": "b"}, cwd="/tmp", on_stdout=seen.append, on_stderr=seen.append, timeout=30
    )
    assert (result.stdout, result.stderr, result.exit_code, result.error) == ("out\nb\n/tmp\n", "err\n", 0, None)
    assert sorted("".join(seen)) == sorted("out\nb\n/tmp\nerr\n")
    assert sandbox.commands.run("whoami").stdout == "user\n"
    assert sandbox.commands.run("whoami", user="root").stdout == "root\n"
    assert sandbox.commands.run("whoami; pwd", user="newcomer").stdout == "newcomer\n/home/newcomer\n"
    failed = raises(CommandExitException, lambda: sandbox.commands.run("echo why >&2; exit 3"))
    assert isinstance(failed, CommandExitException)
    assert (failed.exit_code, failed.stderr) == (3, "why\n")
    raises(TimeoutException, lambda: sandbox.commands.run("sleep 60", timeout=1))
    assert len(sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000


def commands_in_the_background(sandbox: Sandbox) -> None:
    reader = sandbox.commands.run("cat; echo done", background=True, stdin=True)
    assert reader.pid in [process.pid for process in sandbox.commands.list()]
    sandbox.commands.send_stdin(reader.pid, "one\n")
    sandbox.commands.close_stdin(reader.pid)
    assert reader.wait().stdout == "one\ndone\n"
    assert reader.pid not in [process.pid for process in sandbox.commands.list()]

    sleeper = sandbox.commands.run("echo begun; sleep 1000", background=True)
    again = sandbox.commands.connect(sleeper.pid)
    sleeper.disconnect()
    assert sandbox.commands.kill(sleeper.pid) is True
    raises(CommandExitException, again.wait)
    assert sandbox.commands.kill(sleeper.pid) is False  # it was waited for
    raises(NotFoundException, lambda: sandbox.commands.connect(99_999))

    second = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    if hasattr(second, "send_stdin"):
        second.send_stdin("it\n")
        second.close_stdin()
    else:
        sandbox.commands.send_stdin(second.pid, "it\n")
    assert [stdout for stdout, _, _ in second if stdout] == ["got it\n"]
    third = sandbox.commands.run("sleep 1000", background=True)
    assert third.kill() is True
    if hasattr(sandbox.commands, "stream_input"):
        fourth = sandbox.commands.run("cat", background=True, stdin=True)
        sandbox.commands.stream_input(fourth.pid, ["1", b"2", "3"])
        sandbox.commands.close_stdin(fourth.pid)
        assert fourth.wait().stdout == "123"


def files_read_and_written(sandbox: Sandbox) -> None:
    written = sandbox.files.write("dir/a.txt", "text ü")
    assert (written.path, written.name, written.type) == ("/home/user/dir/a.txt", "a.txt", FileType.FILE)
    assert sandbox.files.read("dir/a.txt") == "text ü"
    assert sandbox.files.read("/home/user/dir/a.txt", format="bytes") == "text ü".encode()
    assert b"".join(sandbox.files.read("dir/a.txt", format="stream")) == "text ü".encode()
    sandbox.files.write("dir/bytes", b"\0\xff")
    sandbox.files.write("dir/stream", io.BytesIO(b"s" * 3_000_000))
    assert len(sandbox.files.read("dir/stream", format="bytes")) == 3_000_000
    sandbox.files.write("dir/packed", "p" * 10_000, gzip=True)
    assert sandbox.files.read("dir/packed", gzip=True) == "p" * 10_000
    noted = sandbox.files.write("dir/noted", "1", metadata={"purpose": "tests"})
    assert noted.metadata == sandbox.files.get_info("dir/noted").metadata == {"purpose": "tests"}
    sandbox.files.write("mine", "1", user="newcomer")
    assert sandbox.files.get_info("/home/newcomer/mine").owner == "newcomer"
    many = sandbox.files.write_files([{"path": f"many/{number}", "data": str(number)} for number in range(3)])
    assert [one.path for one in many] == [f"/home/user/many/{number}" for number in range(3)]
    raises(FileNotFoundException, lambda: sandbox.files.read("nothing"))


def files_looked_at_and_moved(sandbox: Sandbox) -> None:
    sandbox.files.write("tree/a/b", "123")
    assert sandbox.files.make_dir("tree/c") is True
    assert sandbox.files.make_dir("tree/c") is False
    assert [entry.path for entry in sandbox.files.list("tree")] == ["/home/user/tree/a", "/home/user/tree/c"]
    assert [entry.name for entry in sandbox.files.list("tree", depth=2)] == ["a", "b", "c"]
    info = sandbox.files.get_info("tree/a/b")
    assert (info.size, info.mode, info.permissions, info.owner, info.group) == (3, 0o644, "-rw-r--r--", "user", "user")
    assert abs(info.modified_time - datetime.now(UTC)) < timedelta(minutes=1)
    sandbox.commands.run("ln -s tree/a/b link")
    assert sandbox.files.get_info("link").symlink_target == "/home/user/tree/a/b"
    assert sandbox.files.rename("tree/a/b", "tree/d").path == "/home/user/tree/d"
    assert (sandbox.files.exists("tree/a/b"), sandbox.files.exists("tree/d")) == (False, True)
    sandbox.files.remove("tree")
    assert not sandbox.files.exists("tree")
    raises(NotFoundException, lambda: sandbox.files.list("tree"))


def directories_watched(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.write("watched/new", "1")
    sandbox.commands.run("rm watched/new")
    events: list[Any] = []
    until(lambda: events.extend(handle.get_new_events()) or FilesystemEventType.REMOVE in [event.type for event in events])
    assert [event.type for event in events if event.name == "new"] == [
        FilesystemEventType.CREATE,
        FilesystemEventType.WRITE,
        FilesystemEventType.REMOVE,
    ]
    handle.stop()
    raises(SandboxException, handle.get_new_events)
    raises(SandboxException, lambda: sandbox.files.watch_dir("not there"))


def signed_links(sandbox: Sandbox) -> None:
    url = sandbox.upload_url("linked.txt")
    form = b'--x\r\ncontent-disposition: form-data; name="file"; filename="linked.txt"\r\n\r\nby link\r\n--x--\r\n'
    request = urllib.request.Request(url, form, {"Content-Type": "multipart/form-data; boundary=x"})
    assert urllib.request.urlopen(request).status == 200
    assert sandbox.files.read("linked.txt") == "by link"
    with urllib.request.urlopen(sandbox.download_url("linked.txt", use_signature_expiration=60)) as response:
        assert response.read() == b"by link"


def terminals(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), cwd="/tmp", envs={"A": "b"})
    sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=101))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $A-$PWD\n")
    shown = b""
    for _, _, data in terminal:
        shown += data or b""
        if b"b-/tmp" in shown:
            break
    assert b"30 101" in shown
    if hasattr(sandbox.pty, "stream_input"):
        sandbox.pty.stream_input(terminal.pid, ["echo str", b"eamed\n"])
    if hasattr(sandbox.pty, "connect"):
        again = sandbox.pty.connect(terminal.pid)
        again.disconnect()
    assert sandbox.pty.kill(terminal.pid) is True
    until(lambda: not sandbox.pty.kill(terminal.pid))


def facts_and_metrics(sandbox: Sandbox) -> None:
    info = sandbox.get_info()
    assert (info.sandbox_id, info.state, info.metadata["tour"]) == (sandbox.sandbox_id, SandboxState.RUNNING, "yes")
    assert info.started_at <= datetime.now(UTC) < info.end_at
    sandbox.set_timeout(1000)
    assert (sandbox.get_info().end_at - datetime.now(UTC)).total_seconds() > 900
    metrics = until(sandbox.get_metrics)
    assert metrics[0].mem_total > metrics[0].mem_used > 0
    assert sandbox.is_running() is True
    assert sandbox.get_host(8080).startswith(f"8080-{sandbox.sandbox_id}.")
    assert sandbox.get_mcp_url().startswith("https://50005-")
    assert sandbox.traffic_access_token is None or len(sandbox.traffic_access_token) > 20
    assert (sandbox.envd_api_url, sandbox.envd_direct_url) == (os.environ["E2B_SANDBOX_URL"],) * 2
    assert sandbox.connection_config.api_url == os.environ["E2B_API_URL"]
    assert sandbox.sandbox_domain
    assert sandbox.commands.run("echo $TOUR").stdout == "of variables\n"


def sandboxes_listed(sandbox: Sandbox) -> None:
    others = [Sandbox.create(metadata={"listed": sandbox.sandbox_id}) for _ in range(3)]
    pages = Sandbox.list(query=SandboxQuery(metadata={"listed": sandbox.sandbox_id}, state=[SandboxState.RUNNING]), limit=2)
    found: list[str] = []
    while pages.has_next:
        found += [one.sandbox_id for one in pages.next_items()]
    assert sorted(found) == sorted(other.sandbox_id for other in others)
    assert pages.next_token is None
    for other in others:
        assert other.kill() is True
        assert other.kill() is False


def paused_and_connected(sandbox: Sandbox) -> None:
    other = Sandbox.create(timeout=300)
    other.files.write("kept", "1")
    sleeper = other.commands.run("sleep 1234", background=True)
    assert other.pause()
    assert other.is_running() is False
    assert other.get_info().state == SandboxState.PAUSED
    raises(TimeoutException, lambda: other.commands.run("true"))
    back = Sandbox.connect(other.sandbox_id, timeout=300)
    assert back.files.read("kept") == "1"
    assert sleeper.pid in [process.pid for process in back.commands.list()]
    other.connect()
    other.beta_pause()
    assert Sandbox.kill(other.sandbox_id) is True
    assert other.is_running() is False
    raises(SandboxException, lambda: other.commands.run("true"))
    raises(NotFoundException, lambda: Sandbox.connect(other.sandbox_id))


def networks(sandbox: Sandbox) -> None:
    if os.geteuid() != 0 or not hasattr(sandbox, "update_network"):
        return  # without root there is no network whose rules could change
    sandbox.update_network({"allow_out": ["203.0.113.7"], "deny_out": ["0.0.0.0/0"]})
    assert sandbox.commands.run("timeout 9 bash -c 'echo > /dev/tcp/203.0.113.9/80' 2> /dev/null || echo closed").stdout == "closed\n"
    refused = raises(SandboxException, lambda: sandbox.update_network({"allow_out": ["10.0.0.0/8"]}))
    assert "not on the public internet" in str(refused)
    sandbox.update_network({})
    assert sandbox.commands.run("echo goes on").stdout == "goes on\n"


def snapshots_and_forks(sandbox: Sandbox) -> None:
    sandbox.files.write("forked", "before")
    children = sandbox.fork(count=2)
    sandbox.files.write("forked", "after")
    assert [child.files.read("forked") for child in children] == ["before", "before"]
    assert (
        len({child.commands.run("hostname; cat /etc/machine-id 2>/dev/null; head -c 8 /dev/urandom | od").stdout for child in children})
        == 2
    )
    for child in children:
        child.kill()
    snapshot = sandbox.create_snapshot()
    pages = sandbox.list_snapshots()
    assert snapshot.snapshot_id in [one.snapshot_id for one in pages.next_items()]
    assert (pages.has_next, pages.next_token) == (False, None)
    with Sandbox.create(snapshot.snapshot_id) as born:
        assert born.files.read("forked") == "after"
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False


def templates(sandbox: Sandbox) -> None:
    name = f"tour-{sandbox.sandbox_id[:8]}"
    recipe = Template().from_template("base").run_cmd("echo built > built").set_envs({"A": "b"})
    said: list[str] = []
    built = Template.build(recipe, name, cpu_count=1, memory_mb=512, on_build_logs=lambda line: said.append(line.message))
    assert any("echo built" in line for line in said)
    assert (Template.exists(name), Template.alias_exists(name), Template.exists("never-built")) == (True, True, False)
    with Sandbox.create(name) as born:
        assert born.commands.run("cat built; echo $A").stdout == "built\nb\n"
    behind = Template.build_in_background(recipe.skip_cache(), f"{name}-behind")
    until(lambda: Template.get_build_status(behind).status == TemplateBuildStatus.READY, 120)
    Template.assign_tags(name, "v1")
    assert {tag.tag for tag in Template.get_tags(name)} == {"default", "v1"}
    Template.remove_tags(name, "v1")
    assert {(tag.tag, tag.build_id) for tag in Template.get_tags(name)} == {("default", built.build_id)}


def images_of_templates(sandbox: Sandbox) -> None:
    """What the SDK makes of its names for images, which the server pulls by these names from where they are."""
    for begun, image in (
        (Template().from_image("host"), "host"),
        (Template().from_dockerfile("FROM registry.test/some:tag\n"), "registry.test/some:tag"),
        (Template().from_debian_image("12"), "debian:12"),
        (Template().from_ubuntu_image("24.04"), "ubuntu:24.04"),
        (Template().from_python_image("3.12"), "python:3.12"),
        (Template().from_node_image("22"), "node:22"),
        (Template().from_bun_image("1"), "oven/bun:1"),
        (Template().from_base_image(), "e2bdev/base"),
    ):
        assert Template.to_dockerfile(begun).startswith(f"FROM {image}")
        assert f'"fromImage": "{image}' in Template.to_json(begun)
    for method in ("from_alpine_image", "from_arch_image", "from_fedora_image"):
        if hasattr(Template, method):
            assert Template.to_dockerfile(getattr(Template(), method)()).startswith("FROM ")
    private = Template().from_image("registry.test/some:tag", username="ada", password="secret")
    # There is no such registry: what has to come back is that it was tried, and not what with.
    refused = raises(Exception, lambda: Template.build(private, "never"))
    assert "registry.test" in str(refused), refused
    assert "secret" not in str(refused), refused


def git(sandbox: Sandbox) -> None:
    sandbox.git.configure_user("Ada", "ada@example.org")
    sandbox.git.set_config("core.editor", "true", scope="global")
    assert sandbox.git.get_config("user.name", scope="global") == "Ada"
    sandbox.git.init("/home/user/origin.git", bare=True)
    sandbox.git.init("/home/user/repository", initial_branch="main")
    sandbox.files.write("repository/file", "1")
    status = sandbox.git.status("/home/user/repository")
    assert (status.is_clean, status.has_untracked) == (False, True)
    sandbox.git.add("/home/user/repository")
    sandbox.git.commit("/home/user/repository", "First")
    sandbox.git.remote_add("/home/user/repository", "origin", "/home/user/origin.git")
    assert sandbox.git.remote_get("/home/user/repository", "origin") == "/home/user/origin.git"
    sandbox.git.push("/home/user/repository", remote="origin", branch="main", set_upstream=True)
    sandbox.git.create_branch("/home/user/repository", "side")
    sandbox.git.checkout_branch("/home/user/repository", "main")
    assert sandbox.git.branches("/home/user/repository").current_branch == "main"
    sandbox.git.delete_branch("/home/user/repository", "side", force=True)
    sandbox.git.pull("/home/user/repository")
    sandbox.git.clone("/home/user/origin.git", path="/home/user/clone", branch="main")
    sandbox.files.write("repository/file", "2")
    sandbox.git.restore("/home/user/repository", paths=["file"])
    sandbox.git.reset("/home/user/repository", mode="hard")
    assert sandbox.files.read("repository/file") == sandbox.files.read("clone/file") == "1"
    sandbox.git.dangerously_authenticate("ada", "token", host="example.org")


TOUR = (
    commands_in_the_foreground,
    commands_in_the_background,
    files_read_and_written,
    files_looked_at_and_moved,
    directories_watched,
    signed_links,
    terminals,
    facts_and_metrics,
    sandboxes_listed,
    paused_and_connected,
    networks,
    snapshots_and_forks,
    templates,
    images_of_templates,
    git,
)


def begin() -> Sandbox:
    """The sandbox that a tour goes through."""
    return Sandbox.create("base", timeout=300, metadata={"tour": "yes"}, envs={"TOUR": "of variables"})


if __name__ == "__main__":
    with begin() as made:
        for stop in TOUR:
            stop(made)
            print(stop.__name__, flush=True)
    sys.exit(0)
