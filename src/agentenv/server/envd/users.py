"""The users of a sandbox: looked up in its /etc/passwd, and made where they are missing.

E2B's clients name a user with almost every call, and images do not always have it; a call must not fail for that.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from dataclasses import dataclass

from agentenv.guest import files
from agentenv.guest.connection import Connection
from agentenv.guest.errors import AgentFailure
from agentenv.sandbox.link import Link
from agentenv.server.envd.connect import Code, ConnectError

FIRST_ID, LAST_ID = 1000, 59_999
"""The numbers of ordinary users, as Debian's adduser gives them."""

_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,30}\$?", re.ASCII)


@dataclass(frozen=True, slots=True)
class User:
    """An account of the sandbox."""

    name: str
    uid: int
    gid: int
    home: str


class Users:
    """The accounts that were asked for so far, of one sandbox. A rollback can change them, so they count for one generation.

    With `only_root` nobody else can be anybody there: root then goes by every name, each with a home of its own.
    """

    def __init__(self, link: Link, *, only_root: bool = False) -> None:
        self._link = link
        self._only_root = only_root
        self._known: dict[str, User] = {}
        self._generation = 0
        self._making = asyncio.Lock()

    async def find(self, name: str) -> User:
        """The account with that name, made if it is missing. Raises `ConnectError` for what is no name of a user."""
        if self._generation != self._link.host.generation:
            self._known.clear()
            self._generation = self._link.host.generation
        user = self._known.get(name)
        if user is None:
            async with self._making:
                user = self._known.get(name) or await self._look_up(name)
                self._known[name] = user
        return user

    async def _look_up(self, name: str) -> User:
        connection = self._link.connection()
        accounts = parse_accounts(await _content(connection, "/etc/passwd"))
        if name in accounts and not self._only_root:
            return accounts[name]
        if name == "root":
            return accounts.get("root", User("root", 0, 0, "/root"))
        if not _NAME.fullmatch(name):
            raise ConnectError(
                Code.UNAUTHENTICATED,
                f"{name[:40]!r} is no user of the sandbox and cannot become one: a name has small letters, digits, '_', '.' and '-'",
            )
        if self._only_root:
            home = f"/home/{name}"
            await files.make_directory(connection, home, mode=0o755)
            return User("root", 0, 0, home)
        return await _make(connection, name, accounts)


def parse_accounts(passwd: str) -> dict[str, User]:
    """The accounts of a passwd(5) file by name; lines that are no accounts are left out, and the first of a name counts."""
    accounts: dict[str, User] = {}
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and fields[2].isascii() and fields[2].isdigit() and fields[3].isascii() and fields[3].isdigit():
            accounts.setdefault(fields[0], User(fields[0], int(fields[2]), int(fields[3]), fields[5] or "/"))
    return accounts


async def _make(connection: Connection, name: str, accounts: dict[str, User]) -> User:
    """Adds an account, its group and its home directory, as useradd(8) would."""
    groups = await _content(connection, "/etc/group")
    taken = {user.uid for user in accounts.values()} | {
        int(number) for number in re.findall(r"^[^:\n]*:[^:\n]*:(\d+):", groups, re.MULTILINE)
    }
    number = next((candidate for candidate in range(FIRST_ID, LAST_ID) if candidate not in taken), None)
    if number is None:
        raise ConnectError(Code.UNAUTHENTICATED, f"user {name!r} cannot be made: all numbers from {FIRST_ID} to {LAST_ID} are taken")
    user = User(name, number, number, f"/home/{name}")
    await _append(connection, "/etc/group", groups, f"{name}:x:{number}:\n")
    await _append(
        connection,
        "/etc/passwd",
        await _content(connection, "/etc/passwd"),
        f"{name}:x:{number}:{number}::{user.home}:{await _shell(connection)}\n",
    )
    if await files.make_directory(connection, posixpath.dirname(user.home)):
        await connection.call("chmod", path=posixpath.dirname(user.home), mode=0o755)
    await files.make_directory(connection, user.home, mode=0o755)
    await connection.call("chown", path=user.home, user=name)
    return user


async def _content(connection: Connection, path: str) -> str:
    try:
        return (await files.read(connection, path)).decode(errors="replace")
    except AgentFailure as failure:
        if failure.code in ("ENOENT", "ENOTDIR"):
            return ""
        raise


async def _append(connection: Connection, path: str, content: str, line: str) -> None:
    gap = "\n" if content and not content.endswith("\n") else ""
    await files.write(connection, path, (gap + line).encode(), append=True)


async def _shell(connection: Connection) -> str:
    try:
        await files.stat(connection, "/bin/bash")
    except AgentFailure:
        return "/bin/sh"
    return "/bin/bash"
