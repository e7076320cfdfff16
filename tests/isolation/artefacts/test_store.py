"""Programs are found, fetched once, refused when they are too old or damaged, and never left half."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.machines import obtain_or_skip, shared_store

from agentenv.errors import BackendUnavailable, NotFound
from agentenv.isolation.artefacts import NEEDS, ArtefactStore
from agentenv.isolation.artefacts import firecracker as firecracker_recipe
from agentenv.isolation.artefacts.manifest import manifest


def program(path: Path, says: str, status: int = 0) -> Path:
    """A program that tells `says` as its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtefactStore:
    """An empty store on a machine with nothing installed, and without a network."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("FIRECRACKER", "JAILER", "KERNEL", "RUNSC", "QEMU"):
        monkeypatch.delenv(f"AGENTENV_{name}", raising=False)
    (tmp_path / "offline").mkdir()
    return ArtefactStore.open(tmp_path / "store", offline=tmp_path / "offline")


def test_nothing_is_there(store: ArtefactStore) -> None:
    for name in {name for names in NEEDS.values() for name in names} - {"qemu", "runsc"}:
        assert store.find(name) is None
        with pytest.raises(BackendUnavailable, match="agentenv setup"):
            store.require(name)
        with pytest.raises(BackendUnavailable, match=f"AGENTENV_{name.upper()}"):
            store.obtain(name)
    assert not any(path.name.startswith("new-") for path in (store.directory / "partial").iterdir())


def test_an_installed_program_is_found(store: ArtefactStore, tmp_path: Path) -> None:
    path = program(tmp_path / "bin/firecracker", "Firecracker v1.10.1")
    found = store.obtain("firecracker")
    assert (found.path, found.version, found.origin) == (path, "1.10.1", "installed on this machine")
    assert not store.directory.exists()


def test_what_is_given_goes_first(store: ArtefactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin/firecracker", "Firecracker v1.10.1")
    given = program(tmp_path / "given/fc", "Firecracker v1.11.0")
    assert store.give("firecracker", given).version == "1.11.0"
    assert store.require("firecracker").path == given
    named = program(tmp_path / "named/fc", "Firecracker v1.12.0")
    monkeypatch.setenv("AGENTENV_FIRECRACKER", str(named))
    assert store.require("firecracker").origin == "named by AGENTENV_FIRECRACKER"


@pytest.mark.parametrize(
    ("name", "says", "status", "complaint"),
    [
        ("firecracker", "Firecracker v1.9.1", 0, "version 1.9.1; 1.10.0 or newer"),
        ("firecracker", "no number", 0, "tells no version"),
        ("firecracker", "Firecracker v1.12.1", 3, "ended with status 3"),
        ("runsc", "runsc version 0.0~20221219.0", 0, "build of 20221219; 20240101 or newer is needed, since"),
        ("runsc", "runsc version main", 0, "tells no date"),
        ("qemu", "QEMU emulator version 6.2.0", 0, "version 6.2.0; 7.2.0 or newer"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(
    store: ArtefactStore, tmp_path: Path, name: str, says: str, status: int, complaint: str
) -> None:
    path = program(tmp_path / "given", says, status)
    with pytest.raises(BackendUnavailable, match=complaint):
        store.give(name, path)
    assert not (store.directory / "given").exists()


def test_a_path_that_leads_nowhere_is_told(store: ArtefactStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTENV_RUNSC", str(tmp_path / "none"))
    with pytest.raises(BackendUnavailable, match="cannot be run: No such file"):
        store.require("runsc")
    assert store.find("runsc") is None


def test_unknown_names_are_told(store: ArtefactStore) -> None:
    with pytest.raises(NotFound, match="there are firecracker, jailer, kernel, runsc, qemu"):
        store.find("docker")


def test_a_damaged_file_is_refused_and_stays_where_it_is(store: ArtefactStore, tmp_path: Path) -> None:
    wheel = tmp_path / "offline" / manifest().firecracker["wheel"]["file"]
    wheel.write_bytes(b"something else")
    with pytest.raises(BackendUnavailable, match="not what this version of AgentENV expects"):
        store.obtain("firecracker")
    assert wheel.exists()
    assert not (store.directory / "firecracker").exists()


@pytest.mark.soak
def test_a_fetched_program_is_kept_and_checked(store: ArtefactStore) -> None:
    kept = obtain_or_skip("jailer")
    wheel = shared_store().directory / "partial" / manifest().firecracker["wheel"]["file"]
    if not wheel.exists():
        pytest.skip("the wheel was not fetched on this machine")
    (store.offline or Path()).joinpath(wheel.name).write_bytes(wheel.read_bytes())
    seen: list[str] = []
    found = store.obtain("firecracker", progress=lambda what, done, total: seen.append(what))
    assert found.version == manifest().firecracker["version"]
    assert found.path == store.directory / "firecracker/firecracker"
    assert kept.name == "jailer"
    found.path.write_bytes(b"")
    with pytest.raises(BackendUnavailable):
        store.require("firecracker")


def test_processes_that_ask_at_once_fetch_once(tmp_path: Path) -> None:
    """Each process counts its fetches in a file; the recipe's ways are replaced by one that needs no network."""
    script = f"""
import sys
from pathlib import Path
from agentenv.isolation.artefacts import ArtefactStore
from agentenv.isolation.artefacts.firecracker import FirecrackerRecipe
def fetch(self, places, target, progress):
    with open({str(tmp_path / "count")!r}, "a") as file:
        file.write("x")
    (target / "firecracker").write_text("#!/bin/sh\\necho Firecracker v1.12.1\\n")
    (target / "firecracker").chmod(0o755)
    return "a test"
FirecrackerRecipe.fetch = fetch
sys.stdout.write(ArtefactStore.open(Path({str(tmp_path / "store")!r})).obtain("firecracker").version)
"""
    environment = {"PATH": "/nowhere", "PYTHONPATH": ":".join(sys.path)}
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True) for _ in range(4)]
    assert {process.communicate()[0] for process in running} == {"1.12.1"}
    assert (tmp_path / "count").read_text() == "x"


def test_a_broken_off_fetch_leaves_nothing(store: ArtefactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, places: object, target: Path, progress: object) -> str:
        (target / "firecracker").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(firecracker_recipe.FirecrackerRecipe, "fetch", broken)
    with pytest.raises(Exception, match="No space left on device"):
        store.obtain("firecracker")
    assert not (store.directory / "firecracker").exists()
    assert not list((store.directory / "partial").iterdir())
