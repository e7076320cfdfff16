"""Commands: results, limits of time, callbacks, the background."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.sandbox.conftest import real_node

from agentenv.errors import CommandError, CommandTimeout, InvalidState, NotFound, SandboxFileError
from agentenv.sandbox import AsyncSandbox, OutputPiece


async def test_a_non_zero_exit_is_a_result(sandbox: AsyncSandbox) -> None:
    result = await sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.signal) == ("out\n", "err\n", 3, None)
    assert result.wall > 0
    assert result.max_rss is not None
    assert result.max_rss > 0


async def test_check_raises_with_everything(sandbox: AsyncSandbox) -> None:
    with pytest.raises(CommandError, match="status 4: broken") as caught:
        await sandbox.commands.run("echo out; echo broken >&2; exit 4", check=True)
    assert (caught.value.exit_code, caught.value.stdout, caught.value.stderr) == (4, "out\n", "broken\n")


async def test_a_sequence_is_run_as_it_is(sandbox: AsyncSandbox) -> None:
    result = await sandbox.commands.run(["printf", "%s|", "a b", "$HOME", "*"])
    assert result.stdout == "a b|$HOME|*|"


async def test_environment_directory_and_input(sandbox: AsyncSandbox) -> None:
    result = await sandbox.commands.run('cat; echo "$A"; pwd', envs={"A": "x y"}, cwd="/usr", stdin="in\n")
    assert result.stdout == "in\nx y\n/usr\n"


async def test_another_user_begins_where_he_may_be(home: Path) -> None:
    async with real_node(home) as node, await AsyncSandbox.create(node=node) as sandbox:
        if not node.get(sandbox.id).capabilities.users:
            pytest.skip("this backend has no other users here")
        begins = {user: (await sandbox.commands.run("pwd", user=user)).stdout.strip() for user in (None, "root", "user", 4321)}
    assert begins["root"] == begins[None]
    assert begins["user"] == "/home/user"
    assert begins[4321] == "/", "he has no home"


async def test_a_signal_has_the_shells_exit_code(sandbox: AsyncSandbox) -> None:
    result = await sandbox.commands.run("kill -TERM $$")
    assert (result.exit_code, result.signal) == (143, 15)


@pytest.mark.parametrize(("limit", "kind"), [({"timeout": 0.3}, "wall"), ({"idle_timeout": 0.3}, "idle")], ids=["wall", "idle"])
async def test_a_time_out_has_what_was_printed(sandbox: AsyncSandbox, limit: dict[str, float], kind: str) -> None:
    with pytest.raises(CommandTimeout) as caught:
        await sandbox.commands.run("echo before; echo warned >&2; sleep 60", **limit)  # type: ignore[call-overload]
    assert (caught.value.kind, caught.value.stdout, caught.value.stderr) == (kind, "before\n", "warned\n")


async def test_callbacks_get_text_in_order_whole_characters_at_a_time(sandbox: AsyncSandbox) -> None:
    out: list[str] = []
    err: list[str] = []

    async def slow(text: str) -> None:
        await asyncio.sleep(0)
        err.append(text)

    command = r"printf 'a\xe2'; sleep 0.05; printf '\x82\xac'; echo e1 >&2; sleep 0.05; echo e2 >&2"
    result = await sandbox.commands.run(command, on_stdout=out.append, on_stderr=slow)
    assert "".join(out) == result.stdout == "a€"
    assert "".join(err) == "e1\ne2\n"


async def test_a_failing_callback_ends_the_command(sandbox: AsyncSandbox) -> None:
    def fail(text: str) -> None:
        raise RuntimeError("seen enough")

    with pytest.raises(RuntimeError, match="seen enough"):
        await sandbox.commands.run("echo x; sleep 60", on_stdout=fail)
    while await sandbox.commands.list():
        pass


async def test_a_cancelled_caller_ends_the_command(sandbox: AsyncSandbox) -> None:
    running = asyncio.create_task(sandbox.commands.run("sleep 60"))
    while not await sandbox.commands.list():
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    while await sandbox.commands.list():
        pass


async def test_the_background_goes_on_and_is_found_again(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("echo ready; read line; echo got $line; exit 5", background=True, stdin=True, tag="server")
    listed = await sandbox.commands.list()
    assert [(process.pid, process.tag) for process in listed] == [(handle.pid, "server")]
    await handle.disconnect()
    again = await sandbox.commands.connect(handle.pid)
    await sandbox.commands.send_stdin(handle.pid, "word\n")
    result = await again.wait()
    assert (result.stdout, result.exit_code, again.exit_code) == ("ready\ngot word\n", 5, 5)
    assert await sandbox.commands.list() == []


async def test_a_handle_iterates_over_its_output(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("echo one; read x; echo two >&2", background=True, stdin=True)
    pieces: list[OutputPiece] = []
    async for piece in handle:
        pieces.append(piece)
        if piece.stdout:
            await handle.send_stdin("\n")
    assert pieces == [OutputPiece(stdout="one\n"), OutputPiece(stderr="two\n")]
    assert (handle.stdout, handle.stderr) == ("one\n", "two\n")


async def test_a_waiter_with_callbacks_sees_the_beginning_too(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("echo early; read x; echo late", background=True, stdin=True)
    first = await anext(aiter(handle))
    assert first.stdout == "early\n"
    await handle.send_stdin("\n")
    await handle.close_stdin()
    out: list[str] = []
    await handle.wait(on_stdout=out.append)
    assert "".join(out) == "early\nlate\n"


async def test_killing(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("sleep 60 & sleep 60", background=True)
    assert await sandbox.commands.kill(handle.pid)
    assert (await handle.wait()).exit_code == 137
    assert not await handle.kill()
    assert not await sandbox.commands.kill(handle.pid)


async def test_an_unknown_process(sandbox: AsyncSandbox) -> None:
    with pytest.raises(NotFound, match="no process 999999"):
        await sandbox.commands.connect(999999)
    with pytest.raises(NotFound):
        await sandbox.commands.send_stdin(999999, "x")


async def test_what_cannot_start_names_the_culprit(sandbox: AsyncSandbox) -> None:
    with pytest.raises(SandboxFileError, match="/no/such/program") as caught:
        await sandbox.commands.run(["/no/such/program"])
    assert caught.value.code == "ENOENT"
    with pytest.raises(SandboxFileError, match="/no/such/dir"):
        await sandbox.commands.run("true", cwd="/no/such/dir", background=True)


async def test_fifty_at_once(sandbox: AsyncSandbox) -> None:
    results = await asyncio.gather(*(sandbox.commands.run(["sh", "-c", f"echo {number}"]) for number in range(50)))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(50)]


async def test_nothing_runs_in_a_paused_sandbox_and_what_ran_goes_on(sandbox: AsyncSandbox) -> None:
    handle = await sandbox.commands.run("read x; echo $x", background=True, stdin=True)
    await sandbox.pause()
    assert not await sandbox.is_running()
    with pytest.raises(InvalidState, match="paused"):
        await sandbox.commands.run("true")
    await sandbox.resume()
    await handle.send_stdin("on\n")
    assert (await handle.wait()).stdout == "on\n"
