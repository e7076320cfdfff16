"""Where a backend can write memory down, a template holds what its start command has started."""

from __future__ import annotations

import pytest
from tests.machines import runsc_or_skip
from tests.templates.conftest import Yard

from agentenv.isolation import probe_all
from agentenv.sandbox import AsyncSandbox
from agentenv.templates import Options, Startup, Wanted, build_template


@pytest.fixture
def _gvisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can write memory down and shows this machine's directories."""
    runsc_or_skip(monkeypatch)
    (probe,) = (probe for probe in probe_all() if probe.backend == "gvisor")
    if not probe.usable:
        pytest.skip(f"no gVisor here: {probe.reason}")


@pytest.mark.usefixtures("_gvisor")
async def test_the_started_process_goes_on_in_every_sandbox(yard: Yard) -> None:
    yard.write({"Dockerfile": "FROM host\nWORKDIR /srv\n"})
    startup = Startup(command="exec sh -c 'date +%s%N > /tmp/started; exec sleep infinity'", ready="test -s /tmp/started")
    options = Options(isolation="gvisor", network=False)
    record = await build_template(yard.directory, "warm", node=yard.node, options=options, wanted=Wanted(startup))
    assert record.warm is not None
    assert record.isolation == "gvisor"
    again = await build_template(yard.directory, "warm", node=yard.node, options=options, wanted=Wanted(startup))
    assert again.warm == record.warm, "the started process is found again, too"
    started = []
    for wish in ({"isolation": "gvisor"}, {"isolation": "gvisor"}, {"isolation": "namespace"}):
        async with await AsyncSandbox.create("template:warm", node=yard.node, **wish) as sandbox:  # type: ignore[arg-type]
            assert len(await sandbox.commands.list()) == 1
            started.append(await sandbox.files.read("/tmp/started"))
    assert started[0] == started[1], "both went on from the same memory"
    assert started[2] != started[0], "another backend starts the command anew"
    yard.node.templates.delete("warm")
