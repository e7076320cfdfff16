"""Compiles the two native programs (the agent and the namespace launcher) into the package: `python native/build.py`.

The compiler is the first of: `AGENTENV_CC`, `musl-gcc`, the zig compiler of the PyPI package `ziglang`, and the system's `cc` where it
can link statically (it works, but brings a larger C library). Only the standard library is needed here.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

PROGRAMS = {"agentenv-agent": "agent", "agentenv-launch": "launch"}
WARNINGS = ["-Wall", "-Wextra"]
FLAGS = ["-std=c11", "-Os", "-static", *WARNINGS, "-D_GNU_SOURCE", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-s"]
TRIAL = "#include <linux/mount.h>\n#include <stdint.h>\n#include <unistd.h>\nint main(void) { return (int)getpid() & 0; }\n"


def compiler() -> list[str] | None:
    """The command that compiles a static program, or None where the machine has none."""
    if chosen := os.environ.get("AGENTENV_CC"):
        return shlex.split(chosen)
    machine = os.uname().machine
    musl = ["musl-gcc", "-idirafter", "/usr/include", "-idirafter", f"/usr/include/{machine}-linux-gnu"]
    if works(musl):
        return musl
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl"]
    return ["cc"] if works(["cc"]) else None


def works(command: list[str]) -> bool:
    """Whether a compiler is there with all that it needs: its headers, the kernel's, and a static C library."""
    if shutil.which(command[0]) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / "trial.c"
        trial.write_text(TRIAL)
        return subprocess.run([*command, *FLAGS, str(trial), "-o", f"{folder}/trial"], capture_output=True, check=False).returncode == 0


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
                raise SystemExit("no C compiler works here: install musl-tools and linux-libc-dev, or `pip install ziglang`")
            partial = target.with_suffix(f".{os.getpid()}.partial")
            subprocess.run([*command, *FLAGS, f"-I{native / 'common'}", *map(str, sources), "-o", str(partial)], check=True)
            partial.replace(target)
        built.append(target)
    return built


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    for binary in build(here, here.parent / "src" / "agentenv" / "_native"):
        sys.stdout.write(f"{binary.relative_to(here.parent)} {binary.stat().st_size} bytes\n")
