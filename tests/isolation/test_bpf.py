"""The assembler of seccomp programs, against an interpreter of classic BPF and against what the policy says in plain words."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentenv.isolation.namespace import seccomp, syscalls
from agentenv.isolation.namespace.bpf import ALLOW, KILL_PROCESS, NoBitOf, OneOf, Verdict, assemble, refuse

ARCHITECTURE = 0xC000003E
DEFAULT = refuse(errno.ENOSYS)
WORD = st.integers(min_value=0, max_value=2**32 - 1)
LONG = st.integers(min_value=0, max_value=2**64 - 1) | st.sampled_from(
    [0, 1, 2, 10, 16, 40, 1 << 32, (1 << 32) + 2, 0x10000000, 0x80, 0xFFFFFFFF]
)
SIMPLE = st.sampled_from([ALLOW, refuse(errno.EPERM), DEFAULT])
BY_VALUE = st.builds(OneOf, st.integers(0, 5), st.lists(WORD, min_size=1, max_size=5, unique=True).map(tuple), SIMPLE)
VERDICTS = st.dictionaries(st.integers(0, 600), SIMPLE | BY_VALUE | st.builds(NoBitOf, st.integers(0, 5), WORD, SIMPLE), max_size=400)


def run(program: bytes, number: int, arguments: tuple[int, ...], architecture: int = ARCHITECTURE) -> int:
    """What the kernel would answer (the subset of classic BPF that such programs use)."""
    data = struct.pack("=iIQ6Q", number if number < 1 << 31 else number - (1 << 32), architecture, 0, *arguments)
    code = list(struct.iter_unpack("HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("I", data, operand)[0]
        elif operation == 0x06:
            return int(operand)
        elif operation == 0x05:
            at += operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}[operation]
            at += if_true if holds else if_false


def expected(verdict: Verdict, arguments: tuple[int, ...]) -> int:
    if isinstance(verdict, OneOf):
        return ALLOW if arguments[verdict.argument] in verdict.values else verdict.otherwise
    if isinstance(verdict, NoBitOf):
        return verdict.otherwise if arguments[verdict.argument] & verdict.mask else ALLOW
    return verdict


@given(verdicts=VERDICTS, number=st.integers(0, 700), arguments=st.tuples(*[LONG] * 6))
@example(verdicts=dict.fromkeys(range(0, 600, 2), ALLOW), number=599, arguments=(0,) * 6)  # jumps farther than 255
def test_any_policy_is_kept(verdicts: dict[int, Verdict], number: int, arguments: tuple[int, ...]) -> None:
    program = assemble(verdicts, architecture=ARCHITECTURE, default=DEFAULT)
    assert run(program, number, arguments) == expected(verdicts.get(number, DEFAULT), arguments)


@given(number=WORD, arguments=st.tuples(*[LONG] * 6))
def test_other_architectures_end_the_process(number: int, arguments: tuple[int, ...]) -> None:
    program = assemble({0: ALLOW}, architecture=ARCHITECTURE, default=DEFAULT, first_foreign=0x40000000)
    assert run(program, number, arguments, architecture=3) == KILL_PROCESS
    assert (run(program, number, arguments) == KILL_PROCESS) == (number >= 0x40000000)


@pytest.mark.parametrize("pin_cores", [False, True])
def test_the_policy_itself_for_every_call_and_argument_that_matters(pin_cores: bool) -> None:
    library = seccomp.load_library()
    native = library.seccomp_arch_native()
    program = seccomp.compile_filter(pin_cores=pin_cores)
    numbers = {
        library.seccomp_syscall_resolve_name(name.encode()): verdict for name, verdict in seccomp.policy(pin_cores=pin_cores).items()
    }
    firsts = [0, 1, 2, 10, 16, 17, 40, 0x11, 0x400, 0xFFFFFFFF, 1 << 32, *(1 << bit for bit in range(32))]
    for number in range(1024):
        for first in firsts:
            arguments = (first, 0, 0, 0, 0, 0)
            assert run(program, number, arguments, native) == expected(numbers.get(number, DEFAULT), arguments)


def test_the_program_is_small() -> None:
    assert len(seccomp.compile_filter()) // 8 < 300
    assert len(syscalls.ALLOWED) > 250
