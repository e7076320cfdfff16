"""What faults below become: who died, of what, and which limit it was."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.sandbox.local_host import LocalHost

from agentenv.errors import InvalidState, OutOfMemory, ProcessLimit, SandboxDied, SandboxFileError, StorageFull
from agentenv.isolation.contract import OomKill
from agentenv.node.records import StorageKill
from agentenv.sandbox import AsyncSandbox

KILL = OomKill(limit=64 << 20, peak=63 << 20, process="python3 (pid 7)")


async def test_everything_open_ends_when_the_sandbox_dies(local: AsyncSandbox, host: LocalHost, tmp_path: Path) -> None:
    handle = await local.commands.run("sleep 60", background=True)
    shell = await local.shell()
    watch = await local.files.watch_dir(str(tmp_path))
    waiting = [
        asyncio.create_task(local.commands.run("sleep 60")),
        asyncio.create_task(handle.wait()),
        asyncio.create_task(shell.run("sleep 60")),
        asyncio.create_task(anext(watch)),  # type: ignore[arg-type]
    ]
    await local.commands.run("true")
    host.machine.kill()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, SandboxDied)
        assert "signal 9" in str(result)
    for call in (local.commands.run("true"), local.files.read("/etc/passwd"), local.shell(), local.pty.create()):
        with pytest.raises(SandboxDied):
            await call  # type: ignore[misc]
    assert local.state == "dead"


async def test_a_sandbox_ended_on_purpose_is_no_death(local: AsyncSandbox) -> None:
    waiting = asyncio.create_task(local.commands.run("sleep 60"))
    while not await local.commands.list():
        pass
    assert await local.kill()
    assert not await local.kill()
    with pytest.raises(InvalidState, match="ended"):
        await waiting
    with pytest.raises(InvalidState, match="gone"):
        await local.commands.run("true")


async def test_connections_belong_to_one_generation(local: AsyncSandbox, host: LocalHost) -> None:
    waiting = asyncio.create_task(local.commands.run("sleep 60"))
    shell = await local.shell()
    while not await local.commands.list():
        pass
    await local.rollback("any")
    with pytest.raises(InvalidState, match="rolled back"):
        await waiting
    assert (local.generation, await local.commands.list()) == (2, [])
    assert (await shell.run("echo fresh")).stdout == "fresh\n"


async def test_an_agent_that_dies_for_want_of_memory(local: AsyncSandbox, host: LocalHost) -> None:
    await local.commands.run("true")
    host.machine.kills = (KILL,)
    host.machine.kill()
    with pytest.raises(OutOfMemory, match=r"python3 \(pid 7\) at its limit of 64 MiB"):
        await local.commands.run("true")


@pytest.mark.parametrize("command", ["kill -9 $$", "sh -c 'kill -9 $$'; exit $?"], ids=["itself", "its child"])
async def test_a_command_killed_for_want_of_memory(local: AsyncSandbox, host: LocalHost, command: str) -> None:
    assert (await local.commands.run(command)).exit_code == 137
    host.machine.kills = (KILL,)
    with pytest.raises(OutOfMemory) as caught:
        await local.commands.run(command)
    assert (caught.value.limit, caught.value.peak, caught.value.process) == (KILL.limit, KILL.peak, KILL.process)
    assert (await local.commands.run(command)).exit_code == 137, "an old kill explains no new death"


async def test_a_shell_or_background_command_killed_for_want_of_memory(local: AsyncSandbox, host: LocalHost) -> None:
    async with await local.shell() as shell:
        host.machine.kills = (KILL,)
        with pytest.raises(OutOfMemory):
            await shell.run("sh -c 'kill -9 $$'")
        assert (await shell.run("echo on")).stdout == "on\n"
    handle = await local.commands.run("kill -9 $$", background=True)
    host.machine.kills = (KILL, KILL)
    with pytest.raises(OutOfMemory):
        await handle.wait()


async def test_a_refused_fork_in_a_command(local: AsyncSandbox, host: LocalHost) -> None:
    complaint = "echo 'bash: fork: Resource temporarily unavailable' >&2; exit 254"
    assert (await local.commands.run(complaint)).exit_code == 254
    host.machine.refusals = 3
    with pytest.raises(ProcessLimit, match="limit of 10 processes"):
        await local.commands.run(complaint)
    assert (await local.commands.run(complaint)).exit_code == 254


async def test_a_fork_bomb_is_named_and_stopped_though_its_command_ends_well(local: AsyncSandbox, host: LocalHost) -> None:
    host.machine.refusals = 3
    left_behind = "sleep 7531.9 & echo $! >&2; echo 'bash: fork: retry: Resource temporarily unavailable' >&2"
    with pytest.raises(ProcessLimit):
        await local.commands.run(left_behind)
    assert all("7531.9" not in process.args for process in await local.commands.list())
    assert (await local.commands.run("pgrep -f '^sleep 7531.9$'")).exit_code == 1


async def test_a_shell_that_goes_on_after_a_child_was_ended(local: AsyncSandbox, host: LocalHost) -> None:
    host.ended_writers = (StorageKill(limit=8 << 20, used=9 << 20, process="dd (process 7 of the host)"),)
    with pytest.raises(StorageFull):
        await local.commands.run("sh -c 'kill -9 $$'; true")


async def test_a_command_ended_because_it_wrote_too_much(local: AsyncSandbox, host: LocalHost) -> None:
    host.ended_writers = (StorageKill(limit=8 << 20, used=9 << 20, process="dd (process 7 of the host)"),)
    with pytest.raises(StorageFull, match=r"9 MiB used of 8 MiB\. dd \(process 7 of the host\) was ended") as caught:
        await local.commands.run("kill -9 $$")
    assert (caught.value.limit, caught.value.used, caught.value.process) == (8 << 20, 9 << 20, "dd (process 7 of the host)")
    assert (await local.commands.run("kill -9 $$")).exit_code == 137, "an old kill explains no new death"
    host.machine.kills = (KILL,)
    with pytest.raises(OutOfMemory):
        await local.commands.run("kill -9 $$")


@pytest.mark.parametrize("command", ["kill -XFSZ $$", "sh -c 'kill -XFSZ $$'; exit $?"], ids=["itself", "its child"])
async def test_a_file_that_grew_too_large(local: AsyncSandbox, host: LocalHost, command: str) -> None:
    with pytest.raises(StorageFull, match="largest size"):
        await local.commands.run(command)


async def test_full_storage_in_a_command(local: AsyncSandbox, host: LocalHost) -> None:
    complaint = "echo 'cp: No space left on device' >&2; exit 1"
    assert (await local.commands.run(complaint)).exit_code == 1, "a small file system inside was full, not the sandbox's storage"
    host.storage_used = 1 << 20
    with pytest.raises(StorageFull) as caught:
        await local.commands.run(complaint)
    assert (caught.value.limit, caught.value.used) == (1 << 20, 1 << 20)


async def test_a_full_disk_in_a_file_operation(local: AsyncSandbox) -> None:
    with pytest.raises(StorageFull, match="/dev/full"):
        await local.files.write("/dev/full", "x", append=True)


async def test_dialling_fails_like_a_local_connect(sandbox: AsyncSandbox) -> None:
    with pytest.raises(ConnectionRefusedError, match="port 1 of sandbox"):
        await sandbox.dial(1)
    with pytest.raises(FileNotFoundError):
        await sandbox.dial("/no/such/socket")


async def test_another_failure_to_start_names_the_program(local: AsyncSandbox) -> None:
    with pytest.raises(SandboxFileError) as caught:
        await local.commands.run(["/etc"])
    assert caught.value.code in ("EACCES", "EISDIR")
