"""Finding the native programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentenv.errors import AgentEnvError
from agentenv.guest import native


def test_a_built_program_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "agentenv-agent"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    assert native.binary("agentenv-agent") == program


def test_a_missing_program_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    with pytest.raises(AgentEnvError, match=r"native/build\.py"):
        native.binary("agentenv-launch")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="agentenv-agent, agentenv-launch"):
        native.binary("sh")
