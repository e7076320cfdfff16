"""The parsers under the sanitizers, and the promises about the program itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conditions import more_in_soak
from tests.native.conftest import NATIVE, WARNINGS, sanitized

ROUNDS, MANY_ROUNDS = 20_000, 1_000_000


@pytest.fixture(scope="module")
def fuzzer() -> Path:
    sources = [
        Path(__file__).with_name("fuzz_parsers.c"),
        NATIVE / "agent/tar_entry.c",
        NATIVE / "agent/tar.c",
        *sorted((NATIVE / "common").glob("*.c")),
    ]
    return sanitized("fuzz", sources, "-DSTANDALONE")


@pytest.mark.parametrize(("rounds", "seed"), more_in_soak([(ROUNDS, 1)], [(MANY_ROUNDS, 2), (MANY_ROUNDS, 3), (MANY_ROUNDS, 4)]))
def test_parsers_survive_damage_and_noise(fuzzer: Path, rounds: int, seed: int) -> None:
    done = subprocess.run([fuzzer, str(rounds), str(seed)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{rounds} rounds\n"


def test_the_program_is_small_and_needs_nothing(shipped_agent: Path) -> None:
    assert shipped_agent.stat().st_size < 300 << 10
    assert b"INTERP" not in subprocess.run(["readelf", "-lW", shipped_agent], capture_output=True, check=True).stdout


@pytest.mark.parametrize("folder", ["agent", "launch"])
def test_no_compiler_warns(folder: str) -> None:
    """A user's build goes on past warnings, which other compilers may have; a developer's must not."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no gcc or clang")
    sources = sorted((NATIVE / folder).glob("*.c"))
    done = subprocess.run([compiler, *WARNINGS, "-fsyntax-only", f"-I{NATIVE / 'common'}", *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
