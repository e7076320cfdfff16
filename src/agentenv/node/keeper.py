"""A process of its own that owns a sandbox which is to outlive the command that wished for it (`agentenv create`).

`python -m agentenv.node.keeper HOME` reads one `Wish` as JSON from its input, starts that sandbox, answers one line of JSON on its output,
and stays until its last sandbox (its own, or a fork of it) has been killed, has reached the end of its lifetime, or is paused to the disk.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

from agentenv.errors import AgentEnvError, InfrastructureError
from agentenv.node.control import Fault, describe, restored
from agentenv.node.home import Home
from agentenv.node.node import Node
from agentenv.node.owner import live_records
from agentenv.node.records import SandboxRecord, SandboxRequest


class Wish(msgspec.Struct, frozen=True):
    """A new sandbox, or the id of one that is paused to the disk and is to go on."""

    request: SandboxRequest | None = None
    resume: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """The id of the sandbox that has started, or why it has not."""

    id: str | None = None
    fault: Fault | None = None


async def create_detached(request: SandboxRequest, home: Path | None = None) -> SandboxRecord:
    """Starts a sandbox in a keeper of its own and returns once it runs. Raises what `Node.create` raises."""
    return await _start_keeper(Wish(request=request), home)


async def resume_detached(identifier: str, home: Path | None = None) -> SandboxRecord:
    """Lets a sandbox that is paused to the disk go on in a keeper of its own. Raises what `NodeSandbox.resume` raises, and `NotFound`."""
    return await _start_keeper(Wish(resume=identifier), home)


async def _start_keeper(wish: Wish, home: Path | None) -> SandboxRecord:
    place = await asyncio.to_thread(Home.open, home)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "agentenv.node.keeper", str(place.path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(wish) + b"\n")
    process.stdin.close()
    line = await process.stdout.readline()
    if not line:
        raise InfrastructureError(f"the keeper of the sandbox ended with status {await process.wait()}.", remedy="Run `agentenv doctor`.")
    answer = msgspec.json.decode(line, type=Answer)
    if answer.fault is not None:
        raise restored(answer.fault)
    found = next((record for record in await asyncio.to_thread(live_records, place) if record.id == answer.id), None)
    if found is None:
        raise InfrastructureError(f"sandbox {answer.id} ended as soon as it had started.", remedy="Give it a longer lifetime.")
    return found


async def keep(home: Path, wish: Wish, answer: int) -> None:
    """Starts the sandbox, writes an `Answer` to the descriptor `answer` and closes it, and returns when no sandbox is left."""
    async with await Node.open(home, keeper=True) as node:
        told = Answer()
        try:
            told = Answer(id=await _fulfil(node, wish))
        except AgentEnvError as error:
            told = Answer(fault=describe(error))
        finally:
            os.write(answer, msgspec.json.encode(told) + b"\n")
            os.close(answer)
        await node.wait_until_empty()


async def _fulfil(node: Node, wish: Wish) -> str:
    if wish.resume is not None:
        sandbox = node.adopt(wish.resume)
        await sandbox.resume()
    else:
        sandbox = await node.create(wish.request or SandboxRequest())
    return sandbox.id


async def main(home: Path) -> None:
    """Keeps the sandbox that the standard input asks for; SIGTERM and SIGINT end it in order."""
    wish = msgspec.json.decode(sys.stdin.buffer.readline(), type=Wish)
    # Whoever asked waits for one line and then for the end of the pipe, which nothing else here may keep open.
    answer = os.dup(sys.stdout.fileno())
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    task = asyncio.create_task(keep(home, wish, answer))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await asyncio.wait({task})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
