"""A network of its own for the browser, with nothing in it but the server: what a page needs from elsewhere cannot come, and what happens
to the networks of this machine (each sandbox has one) breaks off none of the browser's requests."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WITHIN = """
import fcntl, os, socket, struct, sys
parent, port = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x41))  # SIOCSIFFLAGS: up and running (netdevice(7))
listener = socket.create_server(("127.0.0.1", port), backlog=128)
socket.send_fds(parent, [b"x"], [listener.fileno()])
parent.recv(1)
"""


@contextmanager
def secluded(program: str, port: int, directory: Path) -> Iterator[str]:
    """A script that runs `program` where only 127.0.0.1:`port` is reached, which is this machine's."""
    ours, theirs = socket.socketpair()
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", "--net", *users, sys.executable, "-c", WITHIN, str(theirs.fileno()), str(port)]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as keeper:
        theirs.close()
        try:
            _, [descriptor], _, _ = socket.recv_fds(ours, 1, 1)
            with socket.socket(fileno=descriptor) as listener:
                threading.Thread(target=_relay, args=(listener, port), daemon=True).start()
                script = directory / "secluded"
                enter = ["nsenter", f"--target={keeper.pid}", "--net", *(["--user", "--preserve-credentials"] if users else [])]
                script.write_text(f'#!/bin/sh\nexec {" ".join(enter)} {program} "$@"\n')
                script.chmod(0o700)
                yield str(script)
                listener.shutdown(socket.SHUT_RDWR)
        finally:
            ours.close()


def can_seclude() -> bool:
    """Whether this machine lets us make networks."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return False
    users = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return subprocess.run(["unshare", "--net", *users, "true"], capture_output=True, check=False).returncode == 0


def _relay(listener: socket.socket, port: int) -> None:
    while True:
        try:
            inner, _ = listener.accept()
        except OSError:
            return
        outer = socket.create_connection(("127.0.0.1", port))
        for source, target in ((inner, outer), (outer, inner)):
            threading.Thread(target=_pass, args=(source, target), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
