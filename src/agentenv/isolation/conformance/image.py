"""A root file system that every backend can run: a shell and a few programs of this machine, copied with their libraries."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from agentenv.errors import CapabilityError
from agentenv.isolation.contract import RootFilesystem, Tree

PROGRAMS = ("sh", "cat", "date", "hostname", "ls", "rm", "sleep")
_DIRECTORIES = ("bin", "dev", "etc/agentenv/restored.d", "home", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp")


def make_small_root(directory: Path) -> RootFilesystem:
    """Makes it in the new `directory` (a few megabytes). Raises `CapabilityError` on a machine that lacks one of the programs."""
    for name in _DIRECTORIES:
        (directory / name).mkdir(parents=True)
    for name in PROGRAMS:
        source = shutil.which(name)
        if source is None:
            raise CapabilityError(f"this machine has no program {name!r} to make the small image of.")
        shutil.copy2(source, directory / "bin" / name)
        for library in _libraries(source):
            copy = directory / library.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists():
                shutil.copy2(library, copy)
    (directory / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n")
    (directory / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    return RootFilesystem((Tree("/", "root", (directory,)),), "conformance", env={"PATH": "/usr/bin:/bin"})


def _libraries(program: str) -> list[Path]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", listed)]
