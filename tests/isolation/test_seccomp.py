"""The system-call policy as data, and its compilation. What it does to a program is in test_walls.py."""

from __future__ import annotations

import pytest

from agentenv.errors import BackendUnavailable
from agentenv.isolation.namespace import seccomp, syscalls

INSTRUCTION = 8  # struct sock_filter
MOST = 4096  # BPF_MAXINSNS


def test_the_lists_do_not_overlap() -> None:
    conditional = {"clone", "unshare", "socket", "personality", "sched_setaffinity"}
    lists = [*syscalls.ALLOWED, *syscalls.REFUSED, *conditional]
    assert len(lists) == len(set(lists))


@pytest.mark.parametrize("name", ["clone3", "mount", "bpf", "unshare", "io_uring_setup", "keyctl", "setns", "userfaultfd"])
def test_what_reaches_the_kernel_as_a_whole_is_not_allowed(name: str) -> None:
    assert name not in syscalls.ALLOWED


def test_the_program_is_what_the_kernel_takes() -> None:
    program = seccomp.compile_filter()
    assert len(program) % INSTRUCTION == 0
    assert 0 < len(program) // INSTRUCTION <= MOST
    assert program == seccomp.compile_filter()
    assert program != seccomp.compile_filter(pin_cores=True)


def test_without_the_library_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp, "LIBRARY", "libseccomp-is-not-here.so")
    with pytest.raises(BackendUnavailable, match=r"libseccomp-is-not-here\.so cannot be loaded.*apt-get install libseccomp2"):
        seccomp.compile_filter()
