"""Runs the system's own tools (`ip`, `nft`), which speak netlink better than a reimplementation here would."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
    finished = asyncio.ensure_future(_run(argv, text))
    try:
        result = await asyncio.shield(finished)
    except asyncio.CancelledError:
        await asyncio.wait([finished])
        raise
    if check and result.status != 0:
        raise CommandFailed(argv, result.status, result.complaints)
    return result


async def _run(argv: tuple[str, ...], text: str) -> Output:
    with _input(text) as stdin:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=stdin, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
        except FileNotFoundError as error:
            raise InfrastructureError(f"the program `{argv[0]}` is not installed.", remedy="Install iproute2 and nftables.") from error
    output, complaints = await process.communicate()
    return Output(await process.wait(), output.decode(errors="replace"), complaints.decode(errors="replace").strip())


@contextmanager
def _input(text: str) -> Iterator[int]:
    """What a tool reads as its standard input: a file in memory, since a pipe breaks when the tool ends without reading all of it."""
    if not text:
        yield asyncio.subprocess.DEVNULL
        return
    descriptor = os.memfd_create("agentenv-input")
    try:
        with open(descriptor, "w", closefd=False) as file:
            file.write(text)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


class CommandFailed(InfrastructureError):
    """One of the system's tools ended with an error; `complaint` is what it printed."""

    def __init__(self, argv: tuple[str, ...], status: int, complaint: str) -> None:
        super().__init__(f"`{' '.join(argv)}` failed with status {status}: {complaint or 'it printed nothing'}.")
        self.complaint = complaint
