"""The image `debian`, built once on a machine (it takes minutes) and kept for later runs of the tests."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machines import debian_or_skip, shared_cache

from agentenv.errors import CapabilityError, InfrastructureError
from agentenv.images import ImageStore, debian, names

pytestmark = pytest.mark.soak


@pytest.mark.timeout(900)
def test_it_is_a_small_debian_with_python_and_nothing_of_this_machine() -> None:
    root = debian_or_skip()
    (lower,) = root.trees[0].lowers
    assert (lower / "usr/bin/python3").exists()
    assert "user:x:1000:" in (lower / "etc/passwd").read_text()
    assert (lower / "etc/machine-id").read_text() == ""
    assert (lower / "etc/hostname").read_text() == "sandbox\n"
    assert not list((lower / "var/log").iterdir())
    assert not list((lower / "var/cache").iterdir())
    assert (lower / "etc/agentenv/restored.d").is_dir()
    facts = names.description(shared_cache() / "images", "debian")
    assert facts is not None
    built = dt.date.fromisoformat(str(facts["date"]))
    latest = max(path.lstat().st_mtime for path in lower.rglob("*") if path.is_file() and not path.is_symlink())
    assert latest <= dt.datetime.combine(built, dt.time(), dt.UTC).timestamp()


@pytest.mark.timeout(900)
def test_its_python_runs() -> None:
    (lower,) = debian_or_skip().trees[0].lowers
    try:
        done = subprocess.run(["chroot", str(lower), "python3", "-c", "print(6 * 7)"], capture_output=True, text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"chroot is not possible here: {error}")
    assert done.stdout == "42\n"


def test_a_machine_without_the_programs_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(debian.shutil, "which", lambda *names, **options: None)
    with pytest.raises(CapabilityError, match="no mmdebstrap"):
        debian.build(ImageStore(tmp_path))


def test_a_failed_build_says_what_was_printed_last_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = tmp_path / "bin/mmdebstrap"
    failing.parent.mkdir()
    failing.write_text(f"#!{sys.executable}\nprint('I: looking for the mirror'); print('E: no mirror'); raise SystemExit(3)\n")
    failing.chmod(0o755)
    monkeypatch.setattr(debian, "_program", lambda: str(failing))
    told: list[str] = []
    store = ImageStore(tmp_path / "home")
    with pytest.raises(InfrastructureError, match=r"status 3: I: looking for the mirror / E: no mirror"):
        debian.build(store, progress=lambda what, done, total: told.append(what))
    assert told == ["debian: looking for the mirror"]
    assert list(store.directory.iterdir()) == []
