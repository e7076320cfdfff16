"""The node as a user without any privilege, whose sandboxes keep files that even their owner may not read."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentenv

USER = 12345
SCRIPT = """
import asyncio, os, pathlib, sys
from agentenv.errors import BackendUnavailable
from agentenv.guest import Command, Connection
from agentenv.guest.processes import start
from agentenv.node import Node, SandboxRequest

async def run(sandbox, line):
    connection = Connection.open(sandbox.machine.dial())
    process = start(connection, Command(shell=line))
    ended = await process.ended()
    connection.close()
    assert ended.exit_code == 0, bytes(process.stderr)
    return bytes(process.stdout).decode()

async def main(home):
    async with await Node.open(home) as node:
        try:
            sandbox = await node.create(SandboxRequest())
        except BackendUnavailable as error:
            print("unavailable", error)
            return
        await run(sandbox, "mkdir -p /data/secret && echo kept > /data/secret/file && rm /etc/group")
        await run(sandbox, "chmod 000 /data/secret/file /data/secret")
        await sandbox.snapshot("locked")
        await sandbox.rollback("locked")
        (child,) = await sandbox.fork(1)
        for one in (sandbox, child):
            assert await run(one, "cat /data/secret/file; test -e /etc/group || echo gone") == "kept\\ngone\\n"
        await sandbox.kill()
        await child.kill()
        await node.delete_snapshot("locked")
        await node.collect_garbage()
        assert list((home / "snapshots/layers").iterdir()) == []
    assert list((home / "owners").iterdir()) == []
    print("done", os.geteuid())

asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that the user may reach, which those of pytest are not."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    (path / "home").mkdir()
    os.chown(path / "home", USER, USER)
    yield path
    shutil.rmtree(path)


def public_python() -> str:
    """A Python of this version that any user may run, with what this one has installed."""
    for candidate in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        with contextlib.suppress(PermissionError, FileNotFoundError):
            subprocess.run([candidate, "-c", ""], user=USER, group=USER, extra_groups=(), check=True)
            return candidate
    pytest.skip("no Python of this version that other users may run")


def test_snapshots_rollback_and_fork_without_privilege(place: Path) -> None:
    python = public_python()
    path = os.pathsep.join((str(Path(agentenv.__file__).parent.parent), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    result = subprocess.run(
        [python, "-c", SCRIPT, str(place / "home")],
        user=USER,
        group=USER,
        extra_groups=(),
        cwd=place,
        env={"PATH": "/usr/bin:/bin", "HOME": str(place / "home"), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unavailable" in result.stdout:
        pytest.skip(f"no sandboxes without privilege here: {result.stdout}")
    assert result.stdout.splitlines()[-1:] == [f"done {USER}"], result.stderr
