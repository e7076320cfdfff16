"""Makes users that a build names and the files lack: later steps and every file call of the template's sandboxes would fail otherwise."""

from __future__ import annotations

import re

from agentenv.errors import ConfigError, SandboxFileError
from agentenv.sandbox import AsyncSandbox

PASSWD, GROUP = "/etc/passwd", "/etc/group"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_FIRST_ID, _LAST_ID = 1000, 59_999


async def ensure_user(sandbox: AsyncSandbox, wanted: str) -> bool:
    """Sees to it that `USER[:GROUP]` means somebody; numbers always do. Whether something had to be made. Raises `ConfigError`."""
    user, _, group = wanted.partition(":")
    passwd, groups = await _read(sandbox, PASSWD), await _read(sandbox, GROUP)
    accounts, known_groups = _numbers(passwd), _numbers(groups)
    for name in (user, group):
        if name and not name.isdigit() and not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name of a user or group", remedy="Use letters, digits, '_', '.' and '-'.")
    taken = {*accounts.values(), *known_groups.values()}
    free = next(number for number in range(_FIRST_ID, _LAST_ID) if number not in taken)
    new_group = next(
        (name for name in (group, user if not group else "") if name and not name.isdigit() and name not in known_groups), None
    )
    new_user = not user.isdigit() and user not in accounts and user != "root"
    if new_group is not None and (group or new_user):
        groups = f"{_ended(groups)}{new_group}:x:{free}:\n"
        await sandbox.files.write(GROUP, groups)
    elif not new_user:
        return False
    if new_user:
        named = group or user
        gid = named if named.isdigit() else _numbers(groups)[named]
        await sandbox.files.write(
            PASSWD, f"{_ended(passwd or 'root:x:0:0:root:/root:/bin/sh')}{user}:x:{free}:{gid}::/home/{user}:{await _shell(sandbox)}\n"
        )
        await sandbox.files.make_dir(f"/home/{user}", user=owner_in(sandbox, wanted), mode=0o755)
    return True


def owner_in(sandbox: AsyncSandbox, wanted: str | None) -> str | None:
    """Whom something in the sandbox is done as, or belongs to; None, its only user, where the backend gives it no others."""
    return wanted if sandbox.capabilities.users else None


async def _shell(sandbox: AsyncSandbox) -> str:
    return "/bin/bash" if await sandbox.files.exists("/bin/bash") else "/bin/sh"


async def _read(sandbox: AsyncSandbox, path: str) -> str:
    try:
        return await sandbox.files.read(path)
    except SandboxFileError as error:
        if error.code not in ("ENOENT", "ENOTDIR"):
            raise
        return ""


def _numbers(text: str) -> dict[str, int]:
    rows = (line.split(":") for line in text.splitlines())
    return {row[0]: int(row[2]) for row in rows if len(row) > 2 and row[2].isdigit()}


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
