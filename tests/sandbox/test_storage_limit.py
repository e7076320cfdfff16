"""A sandbox that reaches its storage limit: who is ended, what the caller is told, and that all is well once files are removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.machines import runsc_or_skip

from agentenv.errors import StorageFull
from agentenv.isolation.contract import Resources
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox

MIB = 1 << 20
LIMIT = Resources(storage=8 * MIB, memory=64 * MIB)
SMALLER = Resources(storage=8 * MIB, memory=16 * MIB)
FILL = "for n in $(seq 1000); do head -c 1048576 /dev/urandom > /var/big$n || exit $?; done"
"""Several files, and not of one length: a single one would meet the ceiling for a file."""


async def test_the_command_that_wrote_raises_and_the_sandbox_lives_on(node: Node) -> None:
    async with await AsyncSandbox.create(isolation="namespace", resources=LIMIT, node=node) as sandbox:
        with pytest.raises(StorageFull, match="was ended, which was writing") as caught:
            await sandbox.commands.run(FILL)
        assert caught.value.limit == 8 * MIB
        assert caught.value.used > 8 * MIB
        assert caught.value.process is not None
        await sandbox.commands.run("rm /var/big*", check=True)
        await sandbox.files.write("/var/again", bytes(MIB))
        assert (await sandbox.commands.run("wc -c < /var/again")).stdout.strip() == str(MIB)


async def test_a_shell_and_a_background_command_are_told_too(node: Node) -> None:
    async with await AsyncSandbox.create(isolation="namespace", resources=LIMIT, node=node) as sandbox, await sandbox.shell() as shell:
        with pytest.raises(StorageFull):
            await shell.run(f"( {FILL} )")
        await shell.run("rm -f /var/big*")
        handle = await sandbox.commands.run(FILL, background=True)
        with pytest.raises(StorageFull):
            await handle.wait()


async def test_a_single_file_beyond_the_limit(node: Node) -> None:
    async with await AsyncSandbox.create(isolation="namespace", resources=SMALLER, node=node) as sandbox:
        with pytest.raises(StorageFull, match="largest size"):
            await sandbox.commands.run("truncate -s 9M /var/hole || exec head -c 100M /dev/zero > /var/big")
        await sandbox.commands.run("rm /var/big", check=True)
        with pytest.raises(StorageFull, match="/var/upload"):
            await sandbox.files.write("/var/upload", bytes(9 * MIB))
        assert not await sandbox.files.exists("/var/upload")


async def test_an_upload_of_many_files(node: Node, tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / str(number)).write_bytes(bytes(MIB))
    async with await AsyncSandbox.create(isolation="namespace", resources=LIMIT, node=node) as sandbox:

        async def upload_again_and_again() -> None:
            for number in range(100):
                await sandbox.upload_dir(tmp_path, f"/var/copy{number}")

        with pytest.raises(StorageFull):
            await upload_again_and_again()
        await sandbox.commands.run("rm -r /var/copy*", check=True)


@pytest.mark.soak
async def test_a_sandbox_whose_writers_are_not_seen_is_ended_as_a_whole(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    runsc_or_skip(monkeypatch)
    async with await AsyncSandbox.create(isolation="gvisor", resources=LIMIT, node=node) as sandbox:
        assert any(line.startswith("storage:") for line in sandbox.capabilities.lost)
        with pytest.raises(StorageFull) as caught:
            await sandbox.commands.run(FILL)
        assert caught.value.limit == 8 * MIB
        with pytest.raises(StorageFull):
            await sandbox.commands.run("true")
