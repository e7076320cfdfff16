"""Throughput of whole files into and out of a sandbox, beside a plain copy of the same file through a unix socket."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from agentenv.benchmarks.row import ISOLATION, Row, Scale, Target, in_turn, rate_row
from agentenv.sandbox import Sandbox

MEGABYTE = 1_000_000
CHUNK = 1 << 18


def socket_copy(content: bytes, target: Path) -> float:
    """MB/s of `content` sent by one process through a unix socket and written to `target` by another."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            with target.open("wb", buffering=0) as file:
                while chunk := theirs.recv(CHUNK):
                    file.write(chunk)
            os._exit(0)
        finally:  # whatever happens, an interrupt included, this copy of the process goes no further
            os._exit(1)
    theirs.close()
    begin = perf_counter()
    ours.sendall(content)
    ours.close()
    _, status = os.waitpid(child, 0)
    seconds = perf_counter() - begin
    if status != 0:
        raise OSError(f"the receiver of the plain copy could not write {target}.")
    return len(content) / MEGABYTE / seconds


def run(scale: Scale) -> Iterator[Row]:
    """Two rows: MB/s of one large file into a sandbox, and out of it."""
    content = os.urandom(scale.count(100, 10) * MEGABYTE)
    rounds = scale.count(7, 3)
    megabytes = len(content) / MEGABYTE
    target = Target("ratio", ">=", 0.5)
    with tempfile.TemporaryDirectory() as folder, Sandbox.create(isolation=ISOLATION) as sandbox:
        copy = Path(folder) / "copy"

        def write() -> float:
            begin = perf_counter()
            sandbox.files.write("/data.bin", content)
            return megabytes / (perf_counter() - begin)

        def read() -> float:
            begin = perf_counter()
            got = sandbox.files.read("/data.bin", format="bytes")
            rate = megabytes / (perf_counter() - begin)
            if got != content:
                raise AssertionError("what was read back differs from what was written")
            return rate

        for name, action in (("files-write", write), ("files-read", read)):
            mine, theirs = in_turn(rounds, action, lambda: socket_copy(content, copy), warm_up=1)
            yield rate_row(name, mine, theirs, unit="MB/s", reference="plain copy through a unix socket", target=target)
