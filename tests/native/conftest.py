"""The agent is tried as what it is: a program at the other end of a socket, here an ordinary child of the test outside of any sandbox.

Every test runs twice, with the program that is shipped and with one built with the address and undefined-behaviour sanitizers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.machines import shared_cache
from tests.native.client import Client

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]
WARNINGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
EXIT_PATIENCE = 20.0


def sanitized(name: str, sources: list[Path], *options: str) -> Path:
    """A program compiled with the sanitizers, once for all tests of all processes; skips where there is no compiler that has them."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no gcc or clang for a sanitizer build")
    folders = [NATIVE / folder for folder in ("common", "agent")]
    command = [compiler, *WARNINGS, *SANITIZERS, *options, *(f"-I{folder}" for folder in folders), *map(str, sources)]
    made_of = [*sources, *(header for folder in folders for header in sorted(folder.glob("*.h")))]
    key = hashlib.sha256(repr((command, [path.read_bytes() for path in made_of])).encode()).hexdigest()[:16]
    output = shared_cache() / "sanitized" / f"{name}-{key}"
    if not output.exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent) as directory:
            done = subprocess.run([*command, "-o", f"{directory}/{name}"], capture_output=True, text=True)
            if done.returncode and "cannot find -lasan" in done.stderr:
                pytest.skip("the compiler has no sanitizer runtime")
            assert done.returncode == 0, done.stderr
            Path(directory, name).replace(output)
    return output


@pytest.fixture(scope="session")
def shipped_agent() -> Path:
    subprocess.run([sys.executable, str(ROOT / "native" / "build.py")], check=True, capture_output=True)
    return ROOT / "src/agentenv/_native/agentenv-agent"


@pytest.fixture(scope="session", params=["shipped", "sanitized"])
def agent_binary(request: pytest.FixtureRequest) -> Path:
    if request.param == "shipped":
        shipped: Path = request.getfixturevalue("shipped_agent")
        return shipped
    sources = sorted([*(NATIVE / "agent").glob("*.c"), *(NATIVE / "common").glob("*.c")])
    return sanitized("agent", sources)


class Agent:
    """One running agent and the client at its `--stream`."""

    def __init__(self, command: list[str], options: list[str], descriptors: list[int]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*command, "--stream", str(theirs.fileno()), *options], pass_fds=[theirs.fileno(), *descriptors], stdin=subprocess.DEVNULL
            )
        self.client = Client(ours)
        self.hello = self.client.event(0)

    def end(self) -> int:
        """Closes the stream and waits for the agent, which must then end by itself."""
        self.client.close()
        return self.process.wait(EXIT_PATIENCE)


StartAgent = Callable[..., Agent]


@pytest.fixture
def start_agent(agent_binary: Path) -> Iterator[StartAgent]:
    """Starts agents with further options, `around` another command where given; each must end with status 0 once its stream is closed."""
    agents: list[Agent] = []

    def start(*options: str, around: tuple[str, ...] = (), descriptors: tuple[int, ...] = ()) -> Agent:
        agents.append(Agent([*around, str(agent_binary)], list(options), list(descriptors)))
        return agents[-1]

    yield start
    for agent in agents:
        assert agent.end() == 0


@pytest.fixture
def agent(start_agent: StartAgent) -> Agent:
    return start_agent()


@pytest.fixture
def client(agent: Agent) -> Client:
    return agent.client


@pytest.fixture
def as_init(start_agent: StartAgent) -> Agent:
    """An agent that is PID 1 of namespaces of its own, with an empty /run where the files of its limits lie."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare")
    identity = [] if os.geteuid() == 0 else ["--map-root-user"]
    namespaces = [unshare, *identity, "--pid", "--fork", "--mount", "--uts", "--mount-proc", "--kill-child"]
    if subprocess.run([*namespaces, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no namespaces")
    prepare = 'mount -t tmpfs none /run && mkdir /run/agentenv && cd /run/agentenv && touch meminfo cpuinfo cpu_online && exec "$@"'
    limits = ["--memory-limit", str(512 << 20), "--cpus", "1"]
    cpuinfo = os.open("/proc/cpuinfo", os.O_RDONLY)
    try:
        return start_agent(*limits, "--cpuinfo", str(cpuinfo), around=(*namespaces, "sh", "-c", prepare, "sh"), descriptors=(cpuinfo,))
    finally:
        os.close(cpuinfo)
