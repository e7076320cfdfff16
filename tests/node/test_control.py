"""Another process acts on a sandbox through the control socket of its owner."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import (
    AgentEnvError,
    CapabilityError,
    InvalidState,
    NotFound,
    OutOfMemory,
    ProtocolError,
    SandboxDied,
    Stage,
    StartupTimeout,
    StorageFull,
)
from agentenv.isolation.contract import OomKill, Resources
from agentenv.node.control import SOCKET, ControlServer, Fault, ask, describe, restored
from agentenv.node.sandbox import NodeSandbox


class Frozen:
    """Stands for a sandbox: what arrives at it, and nothing else."""

    def __init__(self) -> None:
        self.paused = False

    async def pause(self, to_disk: bool = False) -> None:
        if self.paused:
            raise InvalidState("it is paused.", remedy="Resume it.")
        self.paused = True

    async def resize(self, resources: Resources) -> None:
        raise AssertionError(f"unreadable limits arrived: {resources}")


@pytest.fixture
async def owner(tmp_path: Path) -> Path:
    known = {"sb1": Frozen()}

    def find(identifier: str) -> NodeSandbox:
        if identifier not in known:
            raise NotFound(f"there is no sandbox {identifier!r}.")
        return known[identifier]  # type: ignore[return-value]

    server = ControlServer(find)
    await server.open(tmp_path)
    return tmp_path


async def test_a_call_arrives_and_its_error_comes_back_as_it_was(owner: Path) -> None:
    await ask(owner, "pause", "sb1")
    with pytest.raises(InvalidState, match=r"it is paused\. Resume it\."):
        await ask(owner, "pause", "sb1")


async def test_an_unknown_sandbox_is_not_found(owner: Path) -> None:
    with pytest.raises(NotFound, match="sb2"):
        await ask(owner, "pause", "sb2")


async def test_an_unknown_call_and_wrong_arguments_are_protocol_errors(owner: Path) -> None:
    with pytest.raises(ProtocolError, match="does not understand"):
        await ask(owner, "explode", "sb1")
    with pytest.raises(ProtocolError, match="arguments of 'resize'"):
        await ask(owner, "resize", "sb1", resources={"cpu": "many"})


async def test_rubbish_on_the_socket_harms_nobody(owner: Path) -> None:
    for rubbish in (b"\n", b"{}\n", b"\xff\xfe\n", b"[" * 100 + b"\n", b"x" * (1 << 21)):
        reader, writer = await asyncio.open_unix_connection(str(owner / SOCKET))
        writer.write(rubbish)
        writer.write_eof()
        try:
            answer = await reader.read()
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or b"fault" in answer
        writer.close()
    await ask(owner, "pause", "sb1")


async def test_a_dead_owner_is_said_to_be_gone(tmp_path: Path) -> None:
    with pytest.raises(InvalidState, match="does not answer"):
        await ask(tmp_path, "pause", "sb1")


@given(st.text(), st.none() | st.text(), st.sampled_from([AgentEnvError, CapabilityError, InvalidState, NotFound, ProtocolError]))
def test_an_error_survives_the_way(message: str, remedy: str | None, kind: type[AgentEnvError]) -> None:
    error = restored(describe(kind(message, remedy=remedy)))
    assert type(error) is kind
    assert (error.message, error.remedy) == (message, remedy)


def test_the_facts_of_an_error_survive_the_way() -> None:
    full = restored(describe(StorageFull("sb1", limit=1 << 20, used=1 << 20)))
    memory = restored(describe(OutOfMemory("sb1", limit=1 << 20, peak=2 << 20, process="python")))
    late = restored(describe(StartupTimeout(kind="Sandbox", stage="agent", timeout=3.0, timings=(Stage("launch", 0.5),))))
    assert isinstance(full, StorageFull)
    assert isinstance(memory, OutOfMemory)
    assert isinstance(late, StartupTimeout)
    assert "out of storage" in str(full)
    assert (memory.peak, memory.process) == (2 << 20, "python")
    assert (late.stage, late.timings) == ("agent", (Stage("launch", 0.5),))
    kills = (OomKill(limit=1 << 20, peak=2 << 20, process="python"),)
    dead = restored(describe(SandboxDied("sb1", "it was ended for want of memory", evidence={"oom_kills": kills, "exit_code": 1})))
    assert isinstance(dead, SandboxDied)
    assert dead.evidence == {"oom_kills": kills, "exit_code": 1}


def test_an_error_of_a_newer_version_is_still_an_error() -> None:
    assert type(restored(Fault("FromTheFuture", "what", None))) is AgentEnvError
