"""The kernel's record of an out-of-memory kill, however the killed process chose to be called."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from agentenv.isolation.namespace.kernel_log import parse_kill, read_records

GROUP = "/agentenv-a-1"


def _record(name: str, *, priority: int = 6, group: str = GROUP) -> str:
    line = (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group},task_memcg={group},"
        f"task={name},pid=4242,uid=0"
    )
    return f"{priority},1234,5000,-;{line}\n SUBSYSTEM=x\n"


def _escaped(name: str) -> str:
    """As `record_print_text` spells it: bytes that are not printable ASCII, and the backslash, as \\xNN."""
    return "".join(char if 32 <= ord(char) < 127 and char != "\\" else f"\\x{ord(char):02x}" for char in name)


@given(st.text(st.characters(max_codepoint=255), max_size=15))
def test_any_name_is_found(name: str) -> None:
    assert parse_kill(_record(_escaped(name))) == (GROUP, name)


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    assert parse_kill(text) is None


def test_a_name_cannot_claim_another_group() -> None:
    assert parse_kill(_record("oom_memcg=/b,t")) == (GROUP, "oom_memcg=/b,t")


def test_records_written_by_programs_do_not_count() -> None:
    assert parse_kill(_record("python", priority=14)) is None


def test_other_records_do_not_count() -> None:
    assert parse_kill("6,1,2,-;Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB") is None
    assert parse_kill(_record("x").replace("CONSTRAINT_MEMCG", "CONSTRAINT_NONE")) is None


def test_a_log_that_may_not_be_read_is_empty(tmp_path: Path) -> None:
    assert list(read_records(str(tmp_path / "absent"))) == []
