"""What proc(5) says of a process, and what it does not."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agentenv.server.dashboard.processes import parse


def test_this_process_is_read_right() -> None:
    here = Path("/proc/self")
    found = parse((here / "stat").read_text(), (here / "cmdline").read_text())
    assert found is not None
    assert (found.pid, found.parent) == (os.getpid(), os.getppid())
    assert "python" in found.command or "pytest" in found.command
    assert found.memory > 1 << 20


def test_a_name_may_have_brackets_and_a_kernel_thread_has_no_arguments() -> None:
    fields = "S 1 2 3 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0 100 4096 2 0"
    found = parse(f"7 (a) b (c) {fields}", "")
    assert found is not None
    assert (found.pid, found.command, found.seconds, found.memory) == (7, "[a) b (c]", 2.0, 8192)


@given(stat=st.text(), cmdline=st.text())
def test_anything_else_is_no_process(stat: str, cmdline: str) -> None:
    found = parse(stat, cmdline)
    assert found is None or found.pid >= 0
