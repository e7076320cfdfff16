"""Moves files of a build into a sandbox, and from one sandbox to this machine on their way to another."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from agentenv.errors import SandboxFileError
from agentenv.guest import tar
from agentenv.guest.errors import AgentFailure
from agentenv.images.extract import Layer
from agentenv.sandbox import AsyncSandbox
from agentenv.sandbox.sandbox import link_of
from agentenv.templates.selection import Selection

Value = TypeVar("Value")


async def place(
    sandbox: AsyncSandbox,
    selection: Selection,
    destination: str,
    *,
    directory: bool,
    owner: str | None,
    mode: int | None,
    owners: bool = False,
) -> int:
    """Puts files at `destination`, an absolute path: into it where it ends with a slash, is a `directory` already, or has to be one.

    They belong to `owner` (USER[:GROUP], root by default), or with `owners` to whom they belong here. Returns how many there are.
    """
    into = directory or destination.endswith("/") or not selection.single or await _is_directory(sandbox, destination)
    target = destination.rstrip("/") or "/"
    folder, renamed = (target, None) if into else posixpath.split(target)
    if not await _is_directory(sandbox, folder):
        await sandbox.files.make_dir(folder, user=owner, mode=0o755)
    link = link_of(sandbox)
    try:
        return await tar.send_archive(
            link.connection(),
            lambda file: selection.pack(file, mode=mode, owners=owners, renamed=renamed),
            folder,
            user=None if owners else owner,
            owners=owners,
        )
    except AgentFailure as failure:
        return await link.file_fault(failure, destination)


async def fetch(sandbox: AsyncSandbox, path: str, tree: Path) -> None:
    """Brings what is at `path` (absolute) of a sandbox to the same path below `tree`. Raises `SandboxFileError`."""
    info = await sandbox.files.get_info(path, follow=True)
    goal = tree / path.lstrip("/")
    folder = goal if info.type == "dir" else goal.parent
    folder.mkdir(parents=True, exist_ok=True)

    def unpack(file: BinaryIO) -> None:
        Layer(folder).apply(file)

    await _receive(sandbox, path, unpack)
    if info.type == "dir":
        folder.chmod(info.mode & 0o7777)


async def _receive(sandbox: AsyncSandbox, path: str, read: Callable[[BinaryIO], Value]) -> Value:
    link = link_of(sandbox)
    try:
        return await tar.receive_archive(link.connection(), path, read)
    except AgentFailure as failure:
        return await link.file_fault(failure, path)


async def _is_directory(sandbox: AsyncSandbox, path: str) -> bool:
    try:
        return (await sandbox.files.get_info(path, follow=True)).type == "dir"
    except SandboxFileError as error:
        if error.code in ("ENOENT", "ENOTDIR"):
            return False
        raise
