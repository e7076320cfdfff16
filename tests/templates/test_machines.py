"""The same image and the same Dockerfile in a virtual machine: layers become one root image, steps leave disks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.machines import obtain_or_skip, shared_cache, small_root
from tests.oci import layer_of_tree, make_image, write_layout

from agentenv.isolation import probe_all
from agentenv.isolation.contract import Timeouts
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox
from agentenv.templates import Options, build_template

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
PATIENT = Timeouts(startup=180.0)


async def test_an_image_and_a_build_in_an_emulated_machine(tmp_path: Path) -> None:
    obtain_or_skip("kernel")
    probe = next((probe for probe in probe_all() if probe.backend == "qemu"), None)
    if probe is None or not probe.usable:
        pytest.skip(f"no QEMU here: {probe.reason if probe else 'it is not registered'}")
    home = tmp_path / "home"
    home.mkdir()
    (home / "artefacts").symlink_to(shared_cache() / "artefacts")
    top = tmp_path / "top"
    (top / "app").mkdir(parents=True)
    (top / "app/hello").write_text("hi")
    (top / "bin").mkdir()
    (top / "bin/.wh.dd").touch()
    image = make_image([layer_of_tree(small_root(tmp_path / "root")), layer_of_tree(top)], {"User": "worker", "WorkingDir": "/app"})
    reference = f"oci:{write_layout(tmp_path / 'layout', {'x': image})}"
    context = tmp_path / "context"
    context.mkdir()
    (context / "f").write_text("from context ")
    (context / "Dockerfile").write_text(f"FROM {reference}\nUSER root\nCOPY f /app/\nRUN cat /app/f /app/hello > /app/both\nUSER other\n")
    async with await Node.open(home) as node:
        async with await AsyncSandbox.create(reference, node=node, isolation="qemu", timeouts=PATIENT) as sandbox:
            told = await sandbox.commands.run("pwd; test -e /bin/dd || echo hidden; bash -c 'echo $UID'", check=True)
            assert told.stdout.split() == ["/app", "hidden", "1001"]
        await build_template(context, "machine", node=node, options=Options(isolation="qemu", network=False))
        async with await AsyncSandbox.create("template:machine", node=node, isolation="qemu", timeouts=PATIENT) as sandbox:
            told = await sandbox.commands.run("cat /app/both; bash -c 'echo $UID'", check=True)
            assert told.stdout == "from context hi1002\n"
