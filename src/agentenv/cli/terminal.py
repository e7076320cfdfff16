"""Joins the terminal that the user sits at with one in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator

from agentenv.errors import CapabilityError
from agentenv.sandbox import AsyncCommandHandle

CHUNK = 65536


def require() -> None:
    """Raises `CapabilityError` where the user sits at no terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CapabilityError("our input and output are no terminal.", remedy="Leave out --tty; --interactive passes the input on.")


def size() -> tuple[int, int]:
    """Rows and columns of the user's terminal."""
    found = shutil.get_terminal_size()
    return found.lines, found.columns


@contextlib.contextmanager
def raw(descriptor: int) -> Iterator[None]:
    """The terminal passes every key on as it is, and becomes again what it was, whatever happens."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes to a descriptor, however few bytes it takes at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


async def pieces(descriptor: int) -> AsyncIterator[bytes]:
    """What comes in on a descriptor (a terminal, a pipe, a file), until its end."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a plain file: always ready, and epoll refuses it
        ready.set()
        watched = False
    else:
        watched = True
    try:
        while True:
            await ready.wait()
            data = os.read(descriptor, CHUNK)
            if not data:
                return
            yield data
            if watched:
                ready.clear()
    finally:
        if watched:
            loop.remove_reader(descriptor)


async def forward_input(handle: AsyncCommandHandle, descriptor: int) -> None:
    """Sends all that comes in on `descriptor` to the command, and its end."""
    async for data in pieces(descriptor):
        await handle.send_stdin(data)
    await handle.close_stdin()


async def join(handle: AsyncCommandHandle) -> int:
    """Runs until the program on the sandbox's terminal ends; returns its exit code. The size follows the user's."""
    loop = asyncio.get_running_loop()
    stdin, stdout = sys.stdin.fileno(), sys.stdout.fileno()
    resizes: set[asyncio.Task[None]] = set()

    def resized() -> None:
        task = asyncio.create_task(handle.resize(*size()))
        resizes.add(task)
        task.add_done_callback(resizes.discard)

    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        with raw(stdin):
            keys = asyncio.create_task(forward_input(handle, stdin))
            try:
                result = await handle.wait(on_pty=lambda data: write_all(stdout, data))
            finally:
                keys.cancel()
                await asyncio.gather(keys, return_exceptions=True)
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
    return result.exit_code
