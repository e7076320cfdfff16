"""zstd, which Python can read from version 3.14 on, by the program of that name."""

from __future__ import annotations

import shutil
import subprocess

from agentenv.errors import BackendUnavailable, InfrastructureError


def decompress(data: bytes, what: str) -> bytes:
    """The plain bytes; `what` is named in errors. Raises `BackendUnavailable` where the program is missing."""
    program = shutil.which("zstd")
    if program is None:
        raise BackendUnavailable(f"{what} is compressed with zstd, and there is no program `zstd`.", remedy="Install the package zstd.")
    done = subprocess.run([program, "-dcq"], input=data, capture_output=True, check=False)
    # A kernel has bytes behind the compressed data, of which the program complains after it has written everything.
    if not done.stdout:
        raise InfrastructureError(f"{what} cannot be decompressed: {done.stderr.decode(errors='replace').strip()}.")
    return done.stdout
