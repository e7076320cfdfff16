"""Patterns of a .dockerignore file."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.errors import ConfigError
from agentenv.templates.dockerfile import Ignored


@pytest.mark.parametrize(
    ("patterns", "left_out", "kept"),
    [
        ("*.txt", ["a.txt"], ["sub/a.txt", "a.txt2"]),
        ("**/*.txt", ["a.txt", "sub/a.txt", "a/b/c.txt"], ["a.py"]),
        ("sub", ["sub", "sub/a", "sub/b/c"], ["subs", "other/sub"]),
        ("/sub/", ["sub/a"], ["other/sub"]),
        ("a?c", ["abc"], ["ac", "a/c"]),
        ("[a-c]x", ["ax", "cx"], ["dx"]),
        ("[^a]x", ["bx"], ["ax", "/x"]),
        ("*\n!keep.py", ["a", "b/c"], ["keep.py"]),
        ("*\n!sub/keep\nsub/keep/not", ["a", "sub/other", "sub/keep/not"], ["sub/keep", "sub/keep/yes"]),
        ("# comment\n\n  spaced  ", ["spaced"], ["# comment"]),
        ("./a/../b", ["b"], ["a"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["z", "a/zz"]),
        (r"\*", ["*"], ["x"]),
        ("**", ["a", "b/c"], []),
        (".", [], ["a"]),
    ],
)
def test_patterns_leave_files_out(patterns: str, left_out: list[str], kept: list[str]) -> None:
    ignored = Ignored.parse(patterns)
    assert [path for path in left_out if not ignored.matches(path)] == []
    assert [path for path in kept if ignored.matches(path)] == []


@pytest.mark.parametrize(("text", "line"), [("a\n[", 2), ("!", 1), ("a\\", 1), ("\n\n[z-a]", 3)])
def test_what_is_no_pattern_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Ignored.parse(text)
    assert (caught.value.file, caught.value.line) == (".dockerignore", line)


PARTS = st.sampled_from(["a", "b", "*", "**", "?", "ab", "*b", "[ab]"])
PATTERNS = st.builds(
    lambda negated, parts: ("!" if negated else "") + "/".join(parts), st.booleans(), st.lists(PARTS, min_size=1, max_size=3)
)
PATHS = st.lists(st.sampled_from(["a", "b", "ab", "abb"]), min_size=1, max_size=4).map("/".join)


@given(st.lists(PATTERNS, max_size=4), PATHS)
@settings(max_examples=300, deadline=None)
def test_it_decides_as_e2bs_client_does(patterns: list[str], path: str) -> None:
    """The client hashes and uploads what its own matcher leaves; the same patterns have to mean the same here."""
    matcher = pytest.importorskip("e2b_dockerfile_utils").PatternMatcher
    assert Ignored.of(patterns).matches(path) == matcher(patterns, backslash_is_separator=False).matches(path)


@given(st.text(max_size=20), PATHS)
def test_no_text_breaks_it(text: str, path: str) -> None:
    lines: list[int | None] = [1]
    try:
        Ignored.parse(text).matches(path)
    except ConfigError as error:
        lines = [error.line]
    assert lines != [None]
