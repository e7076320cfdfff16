"""Words of an instruction: quotes, escapes, and variables replaced by their values (https://docs.docker.com/reference/dockerfile/)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentenv.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]")
_BLANK = " \t"


class BadWord(ConfigError):
    """A word that is no word; `split_words` and `expand` raise it, and who knows the line says where."""


def split_words(text: str, escape: str = "\\") -> list[str]:
    """The words of `text` as they are written, quotes and escapes included. Raises `BadWord` for a quote without its partner."""
    words, current, quote, position = [], "", "", 0
    while position < len(text):
        character = text[position]
        if character == escape and quote != "'" and position + 1 < len(text):
            current += text[position : position + 2]
            position += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in _BLANK:
            if current:
                words.append(current)
            current, position = "", position + 1
            continue
        current += character
        position += 1
    if quote:
        raise BadWord(f"the quote {quote} has no partner in {text!r}")
    return [*words, current] if current else words


def expand(word: str, values: Mapping[str, str], escape: str = "\\") -> str:
    """One word with quotes taken off, escapes resolved and variables replaced; within single quotes nothing is replaced.

    Knows `$NAME`, `${NAME}`, `${NAME:-word}`, `${NAME-word}`, `${NAME:+word}`, `${NAME+word}`, `${NAME:?word}`, `${NAME?word}` and the
    removals `${NAME#pattern}`, `##`, `%`, `%%`, `${NAME/pattern/word}`, `//`. Raises `BadWord`.
    """
    result, position, quote = "", 0, ""
    while position < len(word):
        character = word[position]
        if character == escape and quote != "'":
            following = word[position + 1 : position + 2]
            # Within double quotes only these lose their escape, as in a shell.
            keep = quote == '"' and following not in (escape, '"', "$")
            result += (character if keep else "") + following
            position += 2
        elif character in "\"'" and (not quote or character == quote):
            quote = "" if quote else character
            position += 1
        elif character == "$" and quote != "'":
            value, position = _variable(word, position, values, escape)
            result += value
        else:
            result += character
            position += 1
    return result


def expand_words(text: str, values: Mapping[str, str], escape: str = "\\") -> list[str]:
    """The words of `text`, each expanded."""
    return [expand(word, values, escape) for word in split_words(text, escape)]


def _variable(word: str, position: int, values: Mapping[str, str], escape: str) -> tuple[str, int]:
    """The value of the variable at `position`, and where the word goes on."""
    if word[position + 1 : position + 2] != "{":
        match = _NAME.match(word, position + 1)
        return ("$", position + 1) if match is None else (values.get(match[0], ""), match.end())
    match = _NAME.match(word, position + 2)
    end = _closing(word, position + 2, escape)
    if match is None:
        raise BadWord(f"{word[position : end + 1]!r} names no variable")
    return _modified(match[0], word[match.end() : end], word[position : end + 1], values, escape), end + 1


def _closing(word: str, start: int, escape: str) -> int:
    depth, position = 1, start
    while position < len(word):
        if word[position] == escape:
            position += 1
        elif word.startswith("${", position):
            depth += 1
        elif word[position] == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    raise BadWord(f"the brace in {word!r} does not close")


def _modified(name: str, modifier: str, written: str, values: Mapping[str, str], escape: str) -> str:
    value = values.get(name)
    if not modifier:
        return value or ""
    if modifier[0] in "#%/":
        return _without(value or "", modifier, values, escape)
    strict = modifier[0] == ":"
    operator, rest = modifier[strict : strict + 1], modifier[strict + 1 :]
    missing = not value if strict else value is None
    if operator == "-":
        return expand(rest, values, escape) if missing else value or ""
    if operator == "+":
        return "" if missing else expand(rest, values, escape)
    if operator == "?":
        if missing:
            raise BadWord(f"{name} is not set: {expand(rest, values, escape) or 'it has to be'}")
        return value or ""
    raise BadWord(f"{written!r} is no replacement; there are ${{NAME}}, ${{NAME:-word}}, ${{NAME:+word}} and ${{NAME:?word}}")


def _without(value: str, modifier: str, values: Mapping[str, str], escape: str) -> str:
    operator = modifier[0] * 2 if modifier[:2] == modifier[0] * 2 else modifier[0]
    rest = modifier.removeprefix(operator)
    if operator[0] == "/":
        parts = re.match(rf"((?:{re.escape(escape)}.|[^/])*)(?:/(.*))?", rest, re.DOTALL)
        pattern, new = (parts[1], parts[2] or "") if parts else ("", "")
        if not pattern:
            return value
        compiled = re.compile(_glob(expand(pattern, values, escape)), re.DOTALL)
        return compiled.sub(lambda _: expand(new, values, escape), value, count=0 if operator == "//" else 1)
    pattern = _glob(expand(rest, values, escape))
    # The shortest match for one sign, the longest for two; at the beginning for #, at the end for %.
    ends = range(len(value) + 1)
    if operator[0] == "#":
        fitting = [end for end in ends if re.fullmatch(pattern, value[:end], re.DOTALL)]
        return value if not fitting else value[(max if operator == "##" else min)(fitting) :]
    fitting = [start for start in ends if re.fullmatch(pattern, value[start:], re.DOTALL)]
    return value if not fitting else value[: (min if operator == "%%" else max)(fitting)]


def _glob(pattern: str) -> str:
    return "".join(".*" if character == "*" else "." if character == "?" else re.escape(character) for character in pattern)
