"""Processes through a real agent."""

from __future__ import annotations

import asyncio

import pytest
from tests.guest.local_agent import LocalAgent

from agentenv.guest import AgentFailure, Command, Connection, processes
from agentenv.guest.frames import Kind


async def test_output_status_and_usage(connection: Connection) -> None:
    process = processes.start(connection, Command(shell="printf out; printf err >&2; exit 7"))
    ended = await process.run()
    assert (ended.exit_code, ended.signal, ended.timed_out) == (7, None, None)
    assert (process.stdout, process.stderr) == (b"out", b"err")
    assert ended.max_rss > 0


async def test_environment_directory_and_input(connection: Connection) -> None:
    process = processes.start(connection, Command(argv=["sh", "-c", 'cat; echo "$WORD"; pwd'], env={"WORD": "w"}, cwd="/usr", stdin=True))
    await process.send(b"in ")
    process.end()
    await process.run()
    assert process.stdout == b"in w\n/usr\n"


async def test_a_signal_is_told_apart_from_a_status(connection: Connection) -> None:
    process = processes.start(connection, Command(argv=["sleep", "60"]))
    await process.started()
    process.signal(15)
    ended = await process.run()
    assert (ended.exit_code, ended.signal) == (None, 15)


@pytest.mark.parametrize(
    ("limits", "kind"), [({"timeout": 0.2}, "wall"), ({"timeout": 30.0, "idle_timeout": 0.2}, "idle")], ids=["wall", "idle"]
)
async def test_a_time_out_keeps_what_was_printed(connection: Connection, limits: dict[str, float], kind: str) -> None:
    process = processes.start(connection, Command(shell="echo before; sleep 60; echo after", **limits))  # type: ignore[arg-type]
    ended = await process.run()
    assert ended.timed_out == kind
    assert process.stdout == b"before\n"


async def test_what_is_beyond_the_limit_is_counted_and_dropped(connection: Connection) -> None:
    process = processes.start(connection, Command(shell="head -c 100000 /dev/zero"), keep=1000)
    await process.run()
    assert (len(process.stdout), process.dropped) == (1000, 99_000)


async def test_a_flood_arrives_whole(connection: Connection) -> None:
    process = processes.start(connection, Command(shell="head -c 5000000 /dev/zero; head -c 3000000 /dev/zero >&2"))
    await process.run()
    assert (len(process.stdout), len(process.stderr)) == (5_000_000, 3_000_000)


async def test_a_tap_sees_everything_in_order_and_may_come_late(connection: Connection) -> None:
    process = processes.start(connection, Command(shell="echo first; read x; echo second", stdin=True))
    early = process.tap()
    assert await early.next() == (Kind.DATA, b"first\n")
    late = process.tap()
    await process.send(b"\n")
    assert await late.next() == (Kind.DATA, b"first\n")
    assert await late.next() == (Kind.DATA, b"second\n")
    assert await late.next() is None
    assert await early.next() == (Kind.DATA, b"second\n")
    assert await early.next() is None


async def test_a_slow_tap_slows_the_process_and_a_waiter_frees_it(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TAP_BACKLOG", 100_000)
    process = processes.start(connection, Command(shell="head -c 3000000 /dev/zero"))
    tap = process.tap()
    await tap.next()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await asyncio.shield(process.finished)
    assert tap.backlog < 1_000_000
    ended = await process.ended()
    assert ended.exit_code == 0
    assert len(process.stdout) == 3_000_000


async def test_the_list_knows_those_that_run(connection: Connection) -> None:
    process = processes.start(connection, Command(argv=["sleep", "60"], tag="mine"))
    pid = await process.started()
    listed = await processes.processes(connection)
    assert [(entry.pid, entry.argv, entry.tag) for entry in listed] == [(pid, ("sleep", "60"), "mine")]
    assert await processes.signal(connection, pid, 9)
    await process.run()
    assert not await processes.signal(connection, pid, 9)


async def test_a_kept_process_outlives_its_connection(connection: Connection, agent: LocalAgent) -> None:
    process = processes.start(connection, Command(shell="echo early; read line; echo got $line", stdin=True, keep=True))
    pid = await process.started()
    connection.close()
    other = Connection.open(agent.dial())
    attached = processes.attach(other, pid)
    assert await attached.started() == pid
    await attached.send(b"word\n")
    attached.end()
    assert (await attached.run()).exit_code == 0
    assert attached.stdout == b"early\ngot word\n"
    other.close()


async def test_an_abandoned_process_ends_with_its_connection(connection: Connection, agent: LocalAgent) -> None:
    process = processes.start(connection, Command(argv=["sleep", "60"]))
    pid = await process.started()
    connection.close()
    other = Connection.open(agent.dial())
    while await processes.processes(other):
        pass
    with pytest.raises(AgentFailure):
        await processes.attach(other, pid).result()
    other.close()


@pytest.mark.parametrize(
    "command", [Command(argv=["/no/such/program"]), Command(shell="true", cwd="/no/such/directory")], ids=["argv", "cwd"]
)
async def test_what_cannot_start_says_why(connection: Connection, command: Command) -> None:
    process = processes.start(connection, command)
    with pytest.raises(AgentFailure) as caught:
        await process.started()
    assert caught.value.code == "ENOENT"


async def test_a_terminal_is_one_and_has_a_size(connection: Connection) -> None:
    process = processes.start(connection, Command(shell="tty; stty size; read x; stty size", pty=(30, 100), stdin=True))
    tap = process.tap()
    seen = b""
    while b"30 100" not in seen:
        piece = await tap.next()
        assert piece is not None, seen
        seen += piece[1]
    assert b"/dev/pts/" in seen
    process.resize(40, 120)
    await process.send(b"\n")
    await process.run()
    assert b"40 120" in process.stdout


async def test_a_thousand_commands_at_once(connection: Connection) -> None:
    started = [processes.start(connection, Command(argv=["echo", str(number)])) for number in range(1000)]
    ended = await asyncio.gather(*(process.run() for process in started))
    assert all(end.exit_code == 0 for end in ended)
    assert [process.stdout for process in started] == [b"%d\n" % number for number in range(1000)]
