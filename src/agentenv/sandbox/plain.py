"""Recognises command lines that need no shell: plain words, the first of them a program.

For such a line a shell does nothing but find the program and become it, which costs more than most programs take to start (as
make(1) knows, too).
Whatever is not plainly plain goes to the shell, and so does a program that cannot be started, whose complaint is the shell's to make.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z0-9_./@+-]+(?: +[A-Za-z0-9_./:,@+=-]+)*", re.ASCII)

# What a shell (bash, dash, busybox) does itself. Its `true` and `false` are no different from the programs.
_SHELLS_OWN = """
. : [ alias bg bind break builtin caller case cd command compgen complete compopt continue coproc declare dirs disown do done echo elif
else enable esac eval exec exit export fc fg fi for function getopts hash help history if in jobs kill let local logout mapfile popd
printf pushd pwd read readarray readonly return select set shift shopt source suspend test then time times trap type typeset ulimit
umask unalias unset until wait while
"""
_NOT_PROGRAMS = frozenset(_SHELLS_OWN.split())


def plain_words(line: str) -> tuple[str, ...] | None:
    """The words of a line that needs no shell; None for any other."""
    stripped = line.strip(" \n")
    if not _PLAIN.fullmatch(stripped):
        return None
    words = tuple(stripped.split())
    return None if words[0] in _NOT_PROGRAMS else words
