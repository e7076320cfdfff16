"""A PostgreSQL cluster of the tests' own: in a temporary directory, reached through a unix socket only, owned by an ordinary user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SYSTEM_USER = "postgres"
OPTIONS = "-c listen_addresses= -c fsync=off -c max_connections=60 -c shared_buffers=16MB"


def programs() -> Path | None:
    """The directory with PostgreSQL's programs: Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("initdb")
    return Path(elsewhere).resolve().parent if elsewhere else None


def _missing() -> str | None:
    if programs() is None:
        return "needs PostgreSQL (Debian: postgresql)"
    if os.geteuid() == 0 and not any(user.pw_name == SYSTEM_USER for user in pwd.getpwall()):
        return f"needs the user {SYSTEM_USER}, since PostgreSQL does not run as root"
    return None


needs_postgres = pytest.mark.skipif(_missing() is not None, reason=str(_missing()))


@contextmanager
def private_cluster() -> Iterator[str]:
    """The URL of a running server's database `postgres`; `{name}` in it is to be replaced where another is meant."""
    binaries = programs()
    assert binaries is not None
    user = SYSTEM_USER if os.geteuid() == 0 else None
    directory = Path(tempfile.mkdtemp(prefix="agentenv-pg-"))
    try:
        if user is not None:
            shutil.chown(directory, user)
        data = directory / "data"

        def run(program: str, *arguments: str) -> None:
            subprocess.run([binaries / program, *arguments], user=user, cwd=directory, check=True, stdout=subprocess.DEVNULL, timeout=60)

        run("initdb", "-D", str(data), "-U", "agentenv", "-A", "trust", "--no-sync", "--no-instructions")
        run("pg_ctl", "-D", str(data), "-w", "-l", str(directory / "log"), "-o", f"{OPTIONS} -k {directory}", "start")
        try:
            yield f"postgresql://agentenv@/{{name}}?host={directory}"
        finally:
            run("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory)
