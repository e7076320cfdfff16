"""The end of a command is found however its output is cut, and nothing else is taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ProtocolError
from agentenv.sandbox.markers import MarkerFinder

WORD = b"\x02aabaab"
pieces = st.lists(
    st.sampled_from([WORD[:size] for size in range(1, len(WORD))] + [b"\n", b" ", b"0", b"x", b"\x02", WORD + b"!", b""]), max_size=12
)


@given(pieces, st.integers(0, 255), st.lists(st.integers(1, 5), max_size=40), st.binary(max_size=5))
def test_output_and_status_come_out_as_they_went_in(parts: list[bytes], status: int, cuts: list[int], behind: bytes) -> None:
    output = b"".join(parts)
    stream = output + WORD + b" %d\n" % status + behind
    finder, got = MarkerFinder(WORD), b""
    while stream:
        cut = cuts.pop() if cuts else len(stream)
        if finder.status is None:
            got += finder.feed(stream[:cut])
        else:
            finder.rest += stream[:cut]
        stream = stream[cut:]
    assert (got, finder.status, finder.rest) == (output, status, behind)


@given(pieces)
def test_without_a_marker_everything_is_output(parts: list[bytes]) -> None:
    finder = MarkerFinder(WORD)
    got = b"".join([finder.feed(part) for part in parts]) + finder.flush()
    assert finder.status is None
    assert got == b"".join(parts)


def test_output_that_cannot_be_the_marker_is_passed_on_at_once() -> None:
    finder = MarkerFinder(WORD)
    assert finder.feed(b"hello\n") == b"hello\n"
    assert finder.feed(b"x\x02aab") == b"x"
    assert finder.feed(b"?") == b"\x02aab?"


@pytest.mark.parametrize("status", [b"x", b"-1", b"1234567", b""])
def test_a_marker_with_nonsense_behind_it_is_a_fault(status: bytes) -> None:
    with pytest.raises(ProtocolError):
        MarkerFinder(WORD).feed(WORD + b" " + status + b"\n")
