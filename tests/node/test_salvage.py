"""An owner that is killed leaves the files of those sandboxes for which it had wished so, to whoever clears up after it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.conditions import needs_namespaces

from agentenv.node import Node, SandboxRequest
from agentenv.sandbox import AsyncSandbox

pytestmark = [needs_namespaces]

OWNER = """
import asyncio, pathlib, sys
from agentenv.node import Node, SandboxRequest
from agentenv.sandbox import AsyncSandbox

async def main():
    node = await Node.open(pathlib.Path(sys.argv[1]))
    kept, given_up, forgotten = [AsyncSandbox(await node.create(SandboxRequest(env={"A": "b"})), node) for _ in range(3)]
    await kept.files.write("/root/deep/below", "of before")
    snapshot = await kept.snapshot()
    await kept.rollback(snapshot.id)
    await kept.files.write("/root/file", "of then")
    await kept.commands.run("rm -r /root/deep")
    await kept.files.write("/root/deep/new", "of then")
    node.salvage_at_death(kept.id, {"whose": "mine"})
    node.salvage_at_death(given_up.id, {"whose": "nobody's"})
    node.salvage_at_death(given_up.id, None)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_what_was_written_until_the_death_is_there(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, str(tmp_path), stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    while (line := await owner.stdout.readline()) != b"ready\n":
        assert line, "the owner ended before its time"
    owner.kill()
    await owner.wait()
    async with await Node.open(tmp_path) as node:
        (kept,) = [snapshot for snapshot in await node.snapshots() if snapshot.metadata]
        assert (kept.metadata, kept.env) == ({"whose": "mine"}, {"A": "b"})
        assert kept.parent is not None
        assert [path.name for path in (tmp_path / "owners").iterdir()] == [node.owner.id]
        sandbox = AsyncSandbox(await node.create(SandboxRequest(snapshot=kept.id)), node)
        assert await sandbox.files.read("/root/file") == "of then"
        assert [entry.name for entry in await sandbox.files.list("/root/deep")] == ["new"]
        await node.collect_garbage()
        assert await sandbox.files.read("/root/deep/new") == "of then"
