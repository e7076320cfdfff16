"""Builds the two native programs (the agent and the namespace launcher) into the package.

The compiler is the first of: `AGENTENV_CC`, `musl-gcc`, the zig compiler of the PyPI package `ziglang` (asked for as a build dependency
where the machine has no compiler of its own), and the system's `cc -static` (works, but links a larger C library).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROGRAMS = {"agentenv-agent": "agent", "agentenv-launch": "launch"}
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
FLAGS = ["-std=c11", "-Os", "-static", *WARNINGS, "-D_GNU_SOURCE", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-s"]


def compiler() -> list[str] | None:
    """The command that compiles a static program, or None where the machine has none."""
    if chosen := os.environ.get("AGENTENV_CC"):
        return shlex.split(chosen)
    if shutil.which("musl-gcc") and Path("/usr/include/linux").is_dir():
        return ["musl-gcc", "-idirafter", "/usr/include", "-idirafter", f"/usr/include/{os.uname().machine}-linux-gnu"]
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", f"{os.uname().machine}-linux-musl"]
    if shutil.which("cc"):
        return ["cc"]
    return None


def build(native: Path, output: Path) -> list[Path]:
    """Compiles every program whose sources are newer than its binary; returns the binaries' paths."""
    output.mkdir(parents=True, exist_ok=True)
    built = []
    for program, folder in PROGRAMS.items():
        target = output / program
        sources = sorted([*(native / folder).glob("*.c"), *(native / "common").glob("*.c")])
        inputs = [*sources, *native.glob("*/*.h"), Path(__file__)]
        if not target.exists() or target.stat().st_mtime < max(path.stat().st_mtime for path in inputs):
            command = compiler()
            if command is None:
                raise SystemExit("no C compiler: install gcc or musl-tools, or `pip install ziglang`, and build again")
            partial = target.with_suffix(f".{os.getpid()}.partial")
            subprocess.run([*command, *FLAGS, f"-I{native / 'common'}", *map(str, sources), "-o", str(partial)], check=True)
            partial.replace(target)
        built.append(target)
    return built


class NativeBuildHook(BuildHookInterface[Any]):
    """hatchling's hook: compile before the wheel (or the editable install) is assembled."""

    def dependencies(self) -> list[str]:
        return [] if compiler() else ["ziglang"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        build(root / "native", root / "src" / "agentenv" / "_native")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{os.uname().machine}"


if __name__ == "__main__":
    here = Path(__file__).parent
    for binary in build(here / "native", here / "src" / "agentenv" / "_native"):
        sys.stdout.write(f"{binary.relative_to(here)} {binary.stat().st_size} bytes\n")
