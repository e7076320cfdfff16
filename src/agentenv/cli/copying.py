"""`agentenv cp`: files and directories into a sandbox, out of it, or from one to another."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from agentenv.cli import where
from agentenv.cli.output import JsonFlag, print_json
from agentenv.errors import ConfigError
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.results import FileType, Transfer
from agentenv.units import format_size

_REMOTE = re.compile(r"([A-Za-z0-9-]{2,}):(.*)", re.DOTALL)
Place = Annotated[str, typer.Argument(help="A path of this machine, or SANDBOX:PATH.")]


def cp(source: Place, target: Place, as_json: JsonFlag = False) -> None:
    """Copies a file or directory into a sandbox or out of it; a directory is merged into the target."""
    copied = asyncio.run(_copy(source, target))
    if as_json:
        print_json({"entries": copied.entries, "bytes": copied.size, "skipped": copied.skipped})
        return
    typer.echo(f"{copied.entries} copied, {format_size(copied.size)}")
    for name in copied.skipped:
        typer.echo(f"left out, since it cannot be there: {name}", err=True)


async def _copy(source: str, target: str) -> Transfer:
    from_sandbox, into_sandbox = _REMOTE.fullmatch(source), _REMOTE.fullmatch(target)
    if from_sandbox and into_sandbox:
        with tempfile.TemporaryDirectory() as between:
            fetched = Path(between) / Path(from_sandbox[2]).name
            await _download(from_sandbox, fetched)
            return await _upload(fetched, into_sandbox)
    if into_sandbox:
        return await _upload(Path(source), into_sandbox)
    if from_sandbox:
        return await _download(from_sandbox, Path(target))
    raise ConfigError("neither side is in a sandbox", key="cp", remedy="Write one of them as SANDBOX:PATH (`agentenv ls` shows the ids).")


async def _upload(source: Path, target: re.Match[str]) -> Transfer:
    sandbox, path = await where.sandbox(target[1]), target[2] or "/root"
    if await asyncio.to_thread(source.is_dir):
        return await sandbox.upload_dir(source, path)
    try:
        content = await asyncio.to_thread(source.open, "rb")
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}", key="cp", remedy="Name a file or directory.") from error
    with content:
        inside = f"{path.rstrip('/')}/{source.name}" if await _is_directory(sandbox, path) else path
        written = await sandbox.files.write(inside, content)
    return Transfer(entries=1, size=written.size)


async def _download(source: re.Match[str], target: Path) -> Transfer:
    sandbox, path = await where.sandbox(source[1]), source[2]
    if await _is_directory(sandbox, path):
        return await sandbox.download_dir(path, target)
    file = target / Path(path).name if await asyncio.to_thread(target.is_dir) else target
    # Beside the file, so that nobody finds half of it under its name.
    partial = file.with_name(f".{file.name}.partial")
    size = 0
    try:
        with await asyncio.to_thread(partial.open, "wb") as out:
            async for piece in await sandbox.files.read(path, format="stream"):
                size += len(piece)
                await asyncio.to_thread(out.write, piece)
        await asyncio.to_thread(partial.replace, file)
    finally:
        await asyncio.to_thread(partial.unlink, missing_ok=True)
    return Transfer(entries=1, size=size)


async def _is_directory(sandbox: AsyncSandbox, path: str) -> bool:
    return await sandbox.files.exists(path) and (await sandbox.files.get_info(path, follow=True)).type is FileType.DIR
