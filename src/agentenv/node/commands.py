"""Runs the system's own tools (`ip`, `nft`), which speak netlink better than a reimplementation here would."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from agentenv.errors import InfrastructureError


class Output(NamedTuple):
    """How a tool ended: its status, its standard output and its standard error."""

    status: int
    text: str
    complaints: str


async def run(*argv: str, text: str = "", check: bool = True) -> Output:
    """Runs `argv` with `text` on its standard input.

    Raises `InfrastructureError` with the tool's own words when it fails (with `check`) or does not exist.
    Cancelled, it still waits for the tool to end: a half-applied change must be known to be over before it is undone.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError as error:
        raise InfrastructureError(f"the program `{argv[0]}` is not installed.", remedy="Install iproute2 and nftables.") from error
    finished = asyncio.ensure_future(process.communicate(text.encode()))
    try:
        output, complaints = await asyncio.shield(finished)
    except asyncio.CancelledError:
        await finished
        raise
    status = await process.wait()
    result = Output(status, output.decode(errors="replace"), complaints.decode(errors="replace").strip())
    if check and status != 0:
        raise CommandFailed(argv, status, result.complaints)
    return result


class CommandFailed(InfrastructureError):
    """One of the system's tools ended with an error; `complaint` is what it printed."""

    def __init__(self, argv: tuple[str, ...], status: int, complaint: str) -> None:
        super().__init__(f"`{' '.join(argv)}` failed with status {status}: {complaint or 'it printed nothing'}.")
        self.complaint = complaint
