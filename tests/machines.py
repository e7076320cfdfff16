"""What tests of virtual machines share: one place for what is fetched or built (it takes minutes), and a small root to start."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agentenv.errors import BackendUnavailable, CapabilityError, InfrastructureError, NotFound
from agentenv.images import ImageStore, debian
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.contract import RootFilesystem

PROGRAMS = ("bash", "cat", "date", "dd", "df", "hostname", "ls", "nproc", "rm", "sh", "sleep", "stat", "sync")


def shared_cache() -> Path:
    """Kept from one run of the tests to the next: AGENTENV_TEST_CACHE, else below the user's cache directory."""
    chosen = os.environ.get("AGENTENV_TEST_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentenv-tests"


@functools.cache
def shared_store() -> ArtefactStore:
    """The store in which the tests find kernels and programs."""
    return ArtefactStore.open(shared_cache() / "artefacts")


def obtain_or_skip(name: str) -> Path:
    """The artefact's path; the test is skipped with the reason where it cannot be had."""
    try:
        return shared_store().obtain(name).path
    except BackendUnavailable as error:
        pytest.skip(f"no {name}: {error.message}")


def runsc_or_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the test's gVisor be this machine's runsc or, where it has none, the one that is fetched for the tests."""
    monkeypatch.setenv("AGENTENV_RUNSC", str(obtain_or_skip("runsc")))


def small_root(directory: Path) -> Path:
    """A root tree in the new `directory` with a shell and a few programs of this machine, each with its libraries."""
    for name in ("bin", "dev", "etc/agentenv/restored.d", "home/user", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp"):
        (directory / name).mkdir(parents=True)
    for program in PROGRAMS:
        source = shutil.which(program)
        assert source is not None, f"this machine has no {program}"
        shutil.copy2(source, directory / "bin" / program)
        for library in _libraries(Path(source)):
            copy = directory / library.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists():
                shutil.copy2(library, copy)
    (directory / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n")
    (directory / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    return directory


def _libraries(program: Path) -> list[Path]:
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", listed)]


def debian_or_skip() -> RootFilesystem:
    """The image `debian` of the shared cache, built there when no run of the tests has done it yet."""
    store = ImageStore(shared_cache())
    try:
        return store.resolve("debian")
    except NotFound:
        pass
    try:
        return debian.build(store)
    except (CapabilityError, InfrastructureError) as error:
        pytest.skip(f"no image `debian`: {error.message}")
