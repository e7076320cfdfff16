"""Processes through the in-sandbox API, in a real sandbox."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.server.envd.rpc import Failed, streamed, unary

from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.sandbox import link_of
from agentenv.server.envd.connect import ConnectError
from agentenv.server.envd.session import Session
from agentenv.server.envd.users import Users
from agentenv.server.envd.wire import process_pb2 as wire

pytestmark = pytest.mark.asyncio(loop_scope="module")

START, CONNECT, SIGNAL = "process.Process/Start", "process.Process/Connect", "process.Process/SendSignal"


def shell(script: str, *, stdin: bool = False, tag: str | None = None) -> wire.StartRequest:
    """As the SDKs run a command."""
    return wire.StartRequest(process=wire.ProcessConfig(cmd="/bin/bash", args=["-l", "-c", script]), stdin=stdin, tag=tag)


async def feed(client: httpx.AsyncClient, pid: int, **content: bytes) -> None:
    """Sends `stdin=` or `pty=`."""
    request = wire.SendInputRequest(process=by_pid(pid), input=wire.ProcessInput(**content))
    await unary(client, "process.Process/SendInput", request, wire.SendInputResponse)


def by_pid(pid: int) -> wire.ProcessSelector:
    return wire.ProcessSelector(pid=pid)


async def started(events: AsyncIterator[wire.StartResponse]) -> int:
    first = await anext(events)
    assert first.event.WhichOneof("event") == "start"
    return first.event.start.pid


async def rest(events: AsyncIterator[wire.StartResponse | wire.ConnectResponse]) -> tuple[bytes, bytes, wire.ProcessEvent.EndEvent]:
    """What a process prints to its end: stdout or the terminal, stderr, and how it ended."""
    out, err, end = b"", b"", None
    async for one in events:
        kind = one.event.WhichOneof("event")
        if kind == "data":
            out += one.event.data.stdout + one.event.data.pty
            err += one.event.data.stderr
        elif kind == "end":
            end = one.event.end
    assert end is not None
    return out, err, end


async def run(client: httpx.AsyncClient, request: wire.StartRequest, **more: object) -> tuple[bytes, bytes, wire.ProcessEvent.EndEvent]:
    async with streamed(client, START, [request], wire.StartResponse, **more) as events:  # type: ignore[arg-type]
        await started(events)
        return await rest(events)


@pytest.mark.parametrize("codec", ["json", "proto"])
async def test_a_command_prints_and_ends(http: httpx.AsyncClient, codec: str) -> None:
    out, err, end = await run(http, shell("echo out; printf '\\xff' >&2; exit 3"), codec=codec)
    assert (out, err) == (b"out\n", b"\xff")
    assert (end.exit_code, end.exited, end.status, end.error) == (3, True, "exit status 3", "exit status 3")


async def test_a_command_that_ends_well_has_no_error(http: httpx.AsyncClient) -> None:
    _, _, end = await run(http, shell("true"))
    assert (end.exit_code, end.exited, end.status) == (0, True, "exit status 0")
    assert not end.HasField("error")


async def test_user_directory_and_variables(http: httpx.AsyncClient, session: Session) -> None:
    session.envs["GIVEN"] = "by default"
    request = shell("id -un; pwd; echo $HOME $GIVEN $MORE")
    request.process.envs["MORE"] = "by call"
    request.process.cwd = "sub"
    await session.sandbox.files.make_dir("/home/user/sub", user="user")
    out, _, _ = await run(http, request)
    assert out.decode().split("\n")[:3] == ["user", "/home/user/sub", "/home/user by default by call"]
    out, _, _ = await run(http, shell("id -un; pwd"), user="root")
    assert out == b"root\n/root\n"


@pytest.mark.own_sandbox
async def test_a_missing_user_is_made(http: httpx.AsyncClient) -> None:
    out, _, _ = await run(http, shell("id -un; id -gn; touch ~/mine; stat -c %U ~ ~/mine"), user="ada")
    assert out.split() == [b"ada"] * 4
    for name in ("Bad Name", "../etc", "x" * 40):
        with pytest.raises(Failed) as failed:
            await run(http, shell("true"), user=name)
        assert failed.value.code == "unauthenticated"


async def test_what_cannot_be_started_says_why(http: httpx.AsyncClient) -> None:
    missing = shell("true")
    missing.process.cwd = "/not/there"
    for request, word in (
        (missing, "cwd '/not/there' does not exist"),
        (wire.StartRequest(process=wire.ProcessConfig(cmd="/no/such/program")), "/no/such/program is not there"),
        (wire.StartRequest(process=wire.ProcessConfig(cmd="/etc/passwd")), "/etc/passwd cannot be started"),
        (wire.StartRequest(), "`process.cmd` is empty"),
        (wire.StartRequest(process=wire.ProcessConfig(cmd="true", cwd="~somebody")), "only `~`"),
    ):
        with pytest.raises(Failed, match=word) as failed:
            await run(http, request)
        assert failed.value.code == "invalid_argument"


@pytest.mark.own_sandbox
async def test_an_image_without_bash_runs_commands_all_the_same(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    hidden = await sandbox.commands.run("mv /usr/bin/bash /usr/bin/hidden", user="root")
    assert hidden.exit_code == 0, hidden.stderr
    out, _, _ = await run(http, shell("echo from $0"))
    assert out == b"from /bin/sh\n"


async def test_the_time_of_a_command_is_the_clients(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    async with streamed(http, START, [shell("echo before; exec sleep 1234")], wire.StartResponse, timeout=0.5) as events:
        await started(events)
        assert (await anext(events)).event.data.stdout == b"before\n"
        with pytest.raises(Failed) as failed:
            await rest(events)
    assert failed.value.code == "deadline_exceeded"
    await gone(sandbox, "1234")


async def gone(sandbox: AsyncSandbox, word: str) -> None:
    """Waits until no process has the word among its arguments."""
    while (await sandbox.commands.run(["pgrep", "-f", f"sleep {word}"])).exit_code == 0:
        pass


async def test_a_command_outlives_its_client(http: httpx.AsyncClient) -> None:
    async with streamed(http, START, [shell("read line; echo $line", stdin=True)], wire.StartResponse) as events:
        pid = await started(events)
    async with streamed(http, CONNECT, [wire.ConnectRequest(process=by_pid(pid))], wire.ConnectResponse) as events:
        await anext(events)
        await feed(http, pid, stdin=b"still here\n")
        out, _, end = await rest(events)
    assert (out, end.exit_code) == (b"still here\n", 0)


async def test_several_clients_see_one_process(http: httpx.AsyncClient) -> None:
    async with (
        streamed(http, START, [shell("read go; seq 1000", tag="counter", stdin=True)], wire.StartResponse) as first,
        streamed(http, CONNECT, [wire.ConnectRequest(process=wire.ProcessSelector(tag="counter"))], wire.ConnectResponse) as second,
    ):
        pid = await started(first)
        await anext(second)
        await feed(http, pid, stdin=b"\n")
        outputs = [(await rest(events))[0] for events in (first, second)]
    assert outputs[0] == outputs[1] == b"".join(b"%d\n" % number for number in range(1, 1001))


async def test_a_late_client_learns_how_it_ended(http: httpx.AsyncClient) -> None:
    async with streamed(http, START, [shell("exit 7", tag="late")], wire.StartResponse) as events:
        pid = await started(events)
        await rest(events)
    for selector in (by_pid(pid), wire.ProcessSelector(tag="late")):
        async with streamed(http, CONNECT, [wire.ConnectRequest(process=selector)], wire.ConnectResponse) as events:
            assert (await anext(events)).event.start.pid == pid
            assert (await rest(events))[2].exit_code == 7


@pytest.mark.own_sandbox
async def test_list_and_signals(http: httpx.AsyncClient) -> None:
    request = shell("exec sleep 1000", tag="sleeper")
    request.process.envs["A"] = "b"
    async with streamed(http, START, [request], wire.StartResponse) as events:
        pid = await started(events)
        listed = await unary(http, "process.Process/List", wire.ListRequest(), wire.ListResponse)
        (info,) = listed.processes
        assert (info.pid, info.tag, info.config) == (pid, "sleeper", request.process)
        await unary(http, SIGNAL, wire.SendSignalRequest(process=by_pid(pid), signal=wire.SIGNAL_SIGTERM), wire.SendSignalResponse)
        end = (await rest(events))[2]
    assert (end.exit_code, end.exited, end.status, end.error) == (-1, False, "signal: terminated", "signal: terminated")
    for unknown in (by_pid(pid), by_pid(99_999), wire.ProcessSelector(tag="nobody")):
        with pytest.raises(Failed) as failed:
            await unary(http, SIGNAL, wire.SendSignalRequest(process=unknown, signal=wire.SIGNAL_SIGKILL), wire.SendSignalResponse)
        assert (failed.value.code, failed.value.status) == ("not_found", 404)
    with pytest.raises(Failed) as failed:
        await unary(http, SIGNAL, wire.SendSignalRequest(process=by_pid(pid)), wire.SendSignalResponse)
    assert failed.value.status == 501


async def test_input_comes_in_order_and_ends(http: httpx.AsyncClient) -> None:
    async with streamed(http, START, [shell("cat", stdin=True)], wire.StartResponse) as events:
        pid = await started(events)
        numbers = [b"%d\n" % number for number in range(500)]
        requests = [wire.StreamInputRequest(start=wire.StreamInputRequest.StartEvent(process=by_pid(pid)))]
        requests += [
            wire.StreamInputRequest(data=wire.StreamInputRequest.DataEvent(input=wire.ProcessInput(stdin=number))) for number in numbers
        ]
        requests.insert(3, wire.StreamInputRequest(keepalive=wire.StreamInputRequest.KeepAlive()))
        async with streamed(http, "process.Process/StreamInput", requests, wire.StreamInputResponse) as answers:
            assert len([answer async for answer in answers]) == 1
        await unary(http, "process.Process/CloseStdin", wire.CloseStdinRequest(process=by_pid(pid)), wire.CloseStdinResponse)
        assert (await rest(events))[0] == b"".join(numbers)
    with pytest.raises(Failed, match="closed"):
        await feed(http, pid, stdin=b"x")


async def test_much_input_in_one_call_arrives_whole(http: httpx.AsyncClient) -> None:
    size = 3 << 20
    script = f"head -c {size} | sha256sum; echo done"
    async with streamed(http, START, [shell(script, stdin=True)], wire.StartResponse) as events:
        pid = await started(events)
        content = bytes(range(256)) * (size >> 8)
        await feed(http, pid, stdin=content)
        out, _, end = await rest(events)
    assert out.decode().split()[0] == hashlib.sha256(content).hexdigest()
    assert end.exit_code == 0


async def test_a_start_that_fits_into_no_frame_is_refused_with_the_limit(http: httpx.AsyncClient) -> None:
    long = wire.StartRequest(process=wire.ProcessConfig(cmd="/bin/true", args=["x" * (1 << 20)]))
    with pytest.raises(Failed, match="longer than the 1048576") as caught:
        await run(http, long)
    assert caught.value.code == "resource_exhausted"
    assert (await run(http, shell("echo goes on")))[0] == b"goes on\n"


async def test_a_terminal(http: httpx.AsyncClient) -> None:
    request = wire.StartRequest(process=wire.ProcessConfig(cmd="/bin/sh"), pty=wire.PTY(size=wire.PTY.Size(rows=30, cols=101)))
    async with streamed(http, START, [request], wire.StartResponse) as events:
        pid = await started(events)
        await unary(
            http,
            "process.Process/Update",
            wire.UpdateRequest(process=by_pid(pid), pty=wire.PTY(size=wire.PTY.Size(rows=40, cols=111))),
            wire.UpdateResponse,
        )
        await feed(http, pid, pty=b"stty size; exit\n")
        with pytest.raises(Failed, match="send `pty`"):
            await feed(http, pid, stdin=b"x")
        out, _, end = await rest(events)
    assert b"40 111" in out
    assert end.exit_code == 0


async def test_a_silent_process_shows_that_it_lives(http: httpx.AsyncClient) -> None:
    async with streamed(http, START, [shell("sleep 1.5")], wire.StartResponse, keepalive_ping_interval="1") as events:
        kinds = [one.event.WhichOneof("event") async for one in events]
    assert kinds == ["start", "keepalive", "end"]


@pytest.mark.own_sandbox
async def test_memory_that_ran_out_is_named(home: object, sandbox: AsyncSandbox, http: httpx.AsyncClient) -> None:
    probe = await sandbox.commands.run("true")
    assert probe.exit_code == 0
    await sandbox.resize(memory="64MB")
    _, _, end = await run(http, shell("python3 -c 'x = bytearray(1 << 28)'"))
    assert end.exit_code in (-1, 128 + signal.SIGKILL)
    assert "out of memory" in end.error


@pytest.mark.own_sandbox
async def test_a_process_of_another_start_is_found_again(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("read line; echo got $line", background=True, stdin=True, tag="theirs")
    listed = await unary(http, "process.Process/List", wire.ListRequest(), wire.ListResponse)
    assert [info.pid for info in listed.processes] == [handle.pid]
    async with streamed(http, CONNECT, [wire.ConnectRequest(process=wire.ProcessSelector(tag="theirs"))], wire.ConnectResponse) as events:
        await anext(events)
        await feed(http, handle.pid, stdin=b"it\n")
        assert (await rest(events))[0] == b"got it\n"


@pytest.mark.own_sandbox
async def test_a_sandbox_that_ends_ends_the_streams(http: httpx.AsyncClient, sandbox: AsyncSandbox) -> None:
    async with streamed(http, START, [shell("sleep 1000")], wire.StartResponse) as events:
        await started(events)
        await sandbox.kill()
        with pytest.raises(Failed, match="was not found") as failed:
            await rest(events)
    assert failed.value.code == "unavailable"


async def test_where_only_root_can_be_it_goes_by_every_name(sandbox: AsyncSandbox) -> None:
    users = Users(link_of(sandbox), only_root=True)
    ada, root = await users.find("ada2"), await users.find("root")
    assert (ada.name, ada.uid, ada.gid, ada.home) == ("root", 0, 0, "/home/ada2")
    assert (await sandbox.files.get_info("/home/ada2")).owner == "root"
    assert root.home == "/root"
    with pytest.raises(ConnectError, match="is no user"):
        await users.find("../etc")
    await sandbox.files.remove("/home/ada2")
