"""A user without any privilege pulls an image with whiteouts and builds on it, where the kernel lets him have sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.images.conftest import directory, file, pack
from tests.isolation.unprivileged import place, python_for_nobody, run_as_nobody
from tests.machines import small_root
from tests.oci import layer_of_tree, make_image, write_layout

__all__ = ["place"]

SCRIPT = """
import asyncio, pathlib, sys
from agentenv.errors import BackendUnavailable
from agentenv.node import Node
from agentenv.sandbox import AsyncSandbox
from agentenv.templates import Options, build_template

async def main(base, home, reference):
    async with await Node.open(home) as node:
        try:
            sandbox = await AsyncSandbox.create(reference, isolation="namespace", node=node)
        except BackendUnavailable as error:
            print("unavailable", error)
            return
        async with sandbox:
            look = "ls /data /opaque; while read -r line; do last=$line; done < /etc/passwd; echo $last; test -e /bin/dd || echo hidden"
            told = await sandbox.commands.run(look, check=True)
            print(told.stdout)
        steps = "COPY Dockerfile /data/\\nRUN rm /data/new; ls /data > /listed\\nUSER other\\nWORKDIR /home/other"
        (base / "Dockerfile").write_text(f"FROM {reference}\\n{steps}\\n")
        await build_template(base, "mine", node=node, options=Options(isolation="namespace"))
        async with await AsyncSandbox.create("template:mine", isolation="namespace", node=node) as sandbox:
            print((await sandbox.commands.run("cat /listed; pwd", check=True)).stdout)

asyncio.run(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]))
"""


def test_whiteouts_owners_and_builds_without_root(place: Path, tmp_path: Path) -> None:
    python = python_for_nobody(place)
    if python is None:
        pytest.skip("no Python here that an ordinary user may run with this package")
    lower = pack(directory("data"), file("data/old"), directory("opaque"), file("opaque/below"))
    upper = pack(directory("data"), file("data/.wh.old", b""), file("data/new"), directory("opaque"), file("opaque/.wh..wh..opq", b""),
                 file("opaque/above"), directory("bin"), file("bin/.wh.dd", b""))  # fmt: skip
    image = make_image([layer_of_tree(small_root(tmp_path / "root")), lower, upper], {"User": "made"})
    layout = write_layout(place / "layout", {"x": image})
    for path in (layout, *layout.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name in ("context", "home"):
        (place / name).mkdir()
        (place / name).chmod(0o777)
    done = run_as_nobody(python, ["-c", SCRIPT, str(place / "context"), str(place / "home"), f"oci:{layout}"], place)
    if done.stdout.startswith("unavailable"):
        pytest.skip(f"no sandboxes for an ordinary user here: {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "/data:", "new", "/opaque:", "above", "made:x:1001:1001::/home/made:/bin/sh", "hidden", "Dockerfile", "/home/other",
    ]  # fmt: skip
