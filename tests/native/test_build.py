"""The parsers under the sanitizers, and the promises about the program itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.native.conftest import NATIVE, sanitized

ROUNDS = 40_000


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [
        Path(__file__).with_name("fuzz_parsers.c"),
        NATIVE / "agent/tar_entry.c",
        NATIVE / "agent/tar.c",
        *sorted((NATIVE / "common").glob("*.c")),
    ]
    return sanitized(tmp_path_factory.mktemp("fuzz") / "fuzz", sources, "-DSTANDALONE")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_parsers_survive_damage_and_noise(fuzzer: Path, seed: int) -> None:
    done = subprocess.run([fuzzer, str(ROUNDS), str(seed)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ROUNDS} rounds\n"


def test_the_program_is_small_and_needs_nothing(shipped_agent: Path) -> None:
    assert shipped_agent.stat().st_size < 300 << 10
    assert b"INTERP" not in subprocess.run(["readelf", "-lW", shipped_agent], capture_output=True, check=True).stdout
