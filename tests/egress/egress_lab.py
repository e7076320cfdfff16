"""The network lab with an outside world that has names, and an attacker in the sandbox's place."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import dns.asyncresolver
import pytest
from tests.egress import attacker, world
from tests.node.network_lab import HOST, METADATA, PRIVATE, PUBLIC, Lab

from agentenv.egress import resolver

OTHER = "203.0.113.6"
NAMES = {
    "good.example": PUBLIC,
    "www.good.example": PUBLIC,
    "evil.example": OTHER,
    "rebind.good.example": PRIVATE,
    "metadata.good.example": METADATA,
    "host.good.example": HOST,
    "loopback.good.example": "127.0.0.1",
    "internal.example": PRIVATE,
}

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")


@asynccontextmanager
async def outside_world(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Servers at every address of the lab's internet; the node's resolver asks the one there."""
    lab.tell("ip", "-n", lab.internet, "addr", "add", f"{OTHER}/32", "dev", "lo")
    certificate = str(lab.directory / "certificate.pem")
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=world"]
    lab.tell(*request, "-keyout", certificate, "-out", f"{certificate}.crt")
    Path(certificate).write_text(Path(certificate).read_text() + Path(f"{certificate}.crt").read_text())  # noqa: ASYNC240
    enter = ["nsenter", f"--net=/run/netns/{lab.internet}"]
    servers = lab.start(*enter, sys.executable, world.__file__, certificate, json.dumps(NAMES), PUBLIC)

    def source() -> dns.asyncresolver.Resolver:
        found = dns.asyncresolver.Resolver(configure=False)
        found.nameservers, found.port = [PUBLIC], world.NAMES_PORT
        return found

    monkeypatch.setattr(resolver, "_of_this_host", source)
    try:
        yield
    finally:
        servers.kill()
        servers.communicate()


async def asked_of_world(lab: Lab) -> list[str]:
    """The questions that the world's name server has been asked."""
    reader, writer = await asyncio.open_connection(PUBLIC, world.COUNT_PORT)
    found: list[str] = json.loads(await reader.read())
    writer.close()
    return found


async def attack(netns: Path, attempts: Iterable[list[object]]) -> list[str]:
    """What comes of the attempts, made by a process in `netns`."""
    command = ["nsenter", f"--net={netns}", sys.executable, "-S", attacker.__file__, json.dumps(list(attempts))]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    found: list[str] = json.loads(output)
    return found


def request(host: str, *fields: str, target: str = "/", method: str = "GET") -> str:
    """A request as text."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *fields, "", ""])
