"""Words with quotes, escapes and variables."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.templates.dockerfile.words import BadWord, expand, expand_words, split_words

VALUES = {"A": "value", "EMPTY": "", "PATHS": "/usr/local/bin", "x_1": "one"}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("$A", "value"),
        ("${A}s", "values"),
        ("$As", ""),
        ("$A-$x_1", "value-one"),
        ("${MISSING:-fall back}", "fall back"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY-other}", ""),
        ("${A:+set}", "set"),
        ("${EMPTY:+set}", ""),
        ("${EMPTY+set}", "set"),
        ("${MISSING+set}", ""),
        ("${A:?needed}", "value"),
        ("${MISSING:-${A}/${x_1}}", "value/one"),
        (r"\$A", "$A"),
        (r"\\$A", r"\value"),
        ("'$A'", "$A"),
        ('"$A b"', "value b"),
        (r'"a \" b \n"', r'a " b \n'),
        ("a'b'c\"d\"", "abcd"),
        ("$", "$"),
        ("$$A", "$value"),
        ("a$/b", "a$/b"),
        ("${PATHS#/usr}", "/local/bin"),
        ("${PATHS#*/}", "usr/local/bin"),
        ("${PATHS##*/}", "bin"),
        ("${PATHS%/*}", "/usr/local"),
        ("${PATHS%%l*}", "/usr/"),
        ("${PATHS/local/share}", "/usr/share/bin"),
        ("${PATHS//\\//-}", "-usr-local-bin"),
        ("", ""),
    ],
)
def test_variables_are_replaced(word: str, expected: str) -> None:
    assert expand(word, VALUES) == expected


def test_another_escape_character() -> None:
    assert expand("`$A C:\\x", VALUES, "`") == "$A C:\\x"
    assert split_words("a` b c", "`") == ["a` b", "c"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("${A", "does not close"),
        ("${}", "names no variable"),
        ("${A:x}", "no replacement"),
        ("${M:?say so}", "say so"),
        ("${M?}", "has to be"),
    ],
)
def test_what_is_no_variable_is_refused(word: str, message: str) -> None:
    with pytest.raises(BadWord, match=message):
        expand(word, VALUES)


def test_words_are_split_outside_of_quotes() -> None:
    assert split_words("a  'b c'\td\\ e \"f g\"h") == ["a", "'b c'", "d\\ e", '"f g"h']
    assert expand_words("a  'b c'\td\\ e \"f $A\"h", VALUES) == ["a", "b c", "d e", "f valueh"]
    assert split_words("   ") == []
    with pytest.raises(BadWord, match="has no partner"):
        split_words("a 'b")


PIECES = st.sampled_from(["a", " ", "'", '"', "\\", "$A", "${A}", "${M:-x}", "${EMPTY:+y}", "$x_1", "/", "-", ".", "b c"])


@given(st.lists(PIECES, max_size=8).map("".join))
@settings(max_examples=120, deadline=None)
def test_it_is_what_a_shell_makes_of_it(text: str) -> None:
    """The rules are those of a POSIX shell but for the splitting of values, which quotes of the shell here keep out."""
    shell = shutil.which("dash")
    if shell is None:
        pytest.skip("no dash to compare with")
    try:
        ours = expand_words(text, VALUES)
    except BadWord:
        return
    if text.endswith("\\") or any(word.endswith("\\") and not word.endswith("\\\\") for word in split_words(text)):
        return
    script = f"IFS=; printf '%s\\n' {text}"
    done = subprocess.run([shell, "-fc", script], env={**VALUES}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return
    theirs = done.stdout.splitlines()
    # An empty value without quotes is no word for a shell, and an empty one here.
    assert [word for word in theirs if word] == [word for word in ours if word]


@given(st.text(max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    try:
        outcome: object = expand_words(text, VALUES)
    except BadWord as error:
        outcome = error.message or None
    assert outcome is not None
