"""Files that can be made anew at any time go when nobody has wanted them for long."""

from __future__ import annotations

import os
import time
from pathlib import Path

from agentenv.isolation.artefacts.storing import remove_unused, used, write_once

LONG_AGO = time.time() - 1e6


def age(path: Path) -> None:
    os.utime(path, (LONG_AGO, LONG_AGO))


def test_what_was_not_wanted_for_long_is_removed_and_the_rest_stays(tmp_path: Path) -> None:
    for name in ("old", "wanted", "new"):
        write_once(tmp_path / name, b"x" * 10_000)
    age(tmp_path / "old")
    age(tmp_path / "wanted")
    write_once(tmp_path / "wanted", b"never written")
    assert remove_unused(tmp_path, 1e5) >= 10_000
    assert {path.name for path in tmp_path.iterdir()} == {"wanted", "new"}
    assert (tmp_path / "wanted").stat().st_mtime == LONG_AGO


def test_what_is_not_there_is_neither_used_nor_removed(tmp_path: Path) -> None:
    assert not used(tmp_path / "none")
    assert remove_unused(tmp_path / "none") == 0
