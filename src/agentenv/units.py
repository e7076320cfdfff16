"""Sizes, durations and rates as people write them: "4GB", "512MiB", "30s", "1h30m", "100Mbit/s", and back to text.

Decimal and binary prefixes mean what IEC 80000-13 says: 1 GB is 10^9 bytes, 1 GiB is 2^30. Bits as a size, bare prefixes ("4G") and
fractions of a byte are refused rather than guessed.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from itertools import pairwise

_PREFIXES = "KMGTPE"
SIZE_UNITS: dict[str, int] = (
    {"B": 1}
    | {f"{prefix}B": 1000**power for power, prefix in enumerate(_PREFIXES, 1)}
    | {f"{prefix}iB": 1024**power for power, prefix in enumerate(_PREFIXES, 1)}
)
"""Bytes in one of each unit of size."""

DURATION_UNITS: dict[str, Fraction] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
"""Seconds in one of each unit of time."""

SIZE_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*([KMGTPE]i?)?B\s*$"
"""A regular expression (the common subset of ECMA 262 and Python) of the sizes that `parse_size` reads, for schemas and editors."""

DURATION_PATTERN = r"^\s*([0-9]+(\.[0-9]+)?\s*(ms|s|m|h|d)\s*)+$"
"""The same for `parse_duration`."""

RATE_PATTERN = r"^\s*[0-9]+(\.[0-9]+)?\s*([KMGTPE]i?)?(B|bit)/s\s*$"
"""The same for `parse_rate`."""

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_RATE = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<prefix>(?:[KMGTPEkmgtpe]i?)?)(?P<kind>B|bit)/s\s*", re.ASCII)
_SIZE_SPELLINGS = {unit.lower(): unit for unit in SIZE_UNITS}
_LARGEST_SIZE = 2**63 - 1


def parse_size(text: str | int) -> int:
    """The number of bytes that `text` means; a plain whole number is bytes already.

    Raises ValueError, with what would be right, for anything else: also for less than a byte and for more than 2^63 - 1.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise ValueError(f"{text!r} is not a size; write a number with a unit, such as 4GB or 512MiB")
    if isinstance(text, int):
        return _size_in_range(Fraction(text), str(text))
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write a number with a unit, such as 4GB or 512MiB")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"{text!r} has no unit; write {number}MB, {number}GB or {number}GiB (or a plain number of bytes without quotes)")
    spelling = _SIZE_SPELLINGS.get(unit.lower())
    if spelling is None:
        close = f"{unit.upper()}B" if unit.upper() in _PREFIXES else "MB"
        raise ValueError(
            f"{text!r} has the unknown unit {unit!r}; write for example {number}{close}; the units are {', '.join(SIZE_UNITS)}"
        )
    return _size_in_range(Fraction(number) * SIZE_UNITS[spelling], text)


def _size_in_range(size: Fraction, text: str) -> int:
    if size.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    if not 0 <= size <= _LARGEST_SIZE:
        raise ValueError(f"{text!r} is outside of what a size can be, 0 to {_LARGEST_SIZE} bytes")
    return int(size)


def parse_rate(text: str | int) -> int:
    """The bytes a second that `text` means ("10MB/s", or in bits "100Mbit/s"); a plain whole number is bytes a second already.

    Raises ValueError, with what would be right, for anything else: also for less than a byte a second.
    """
    right = "write bytes or bits a second, such as 10MB/s or 100Mbit/s"
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise ValueError(f"{text!r} is not a rate; {right}")
    if isinstance(text, int):
        rate = Fraction(text)
    else:
        match = _RATE.fullmatch(text)
        unit = None if match is None else _SIZE_SPELLINGS.get(f"{match['prefix']}b".lower())
        if match is None or unit is None:
            raise ValueError(f"{text!r} is not a rate; {right}")
        rate = Fraction(match["number"]) * SIZE_UNITS[unit] / (8 if match["kind"] == "bit" else 1)
    if not 1 <= rate <= _LARGEST_SIZE:
        raise ValueError(f"{text!r} is outside of what a rate can be, 1 to {_LARGEST_SIZE} bytes a second")
    return int(rate)


def format_size(size: int) -> str:
    """`size` bytes with at most three digits and the largest fitting decimal unit: 4000000000 -> "4 GB", 1536 -> "1.54 KB"."""
    value, unit = float(size), "B"
    for prefix in _PREFIXES:
        if round(value, 1) < 1000:
            break
        value, unit = value / 1000, f"{prefix}B"
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def parse_duration(text: str | float) -> float:
    """The seconds that `text` means: a number of seconds, or numbers with units, the larger first ("90s", "1h30m", "250ms").

    Raises ValueError, with what would be right, for anything else; never returns a negative or infinite number.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise ValueError(f"{text!r} is not a duration; write a number of seconds or one with a unit, such as 30s or 1h30m")
    if not isinstance(text, str):
        if not (math.isfinite(text) and text >= 0):
            raise ValueError(f"{text!r} is not a duration; write 0 or more seconds")
        return float(text)
    parts = _NUMBER_AND_UNIT.findall(text)
    if not parts or _NUMBER_AND_UNIT.sub("", text):
        raise ValueError(f"{text!r} is not a duration; write a number with a unit, such as 30s, 250ms or 1h30m")
    return _sum_of_parts(parts, text)


def _sum_of_parts(parts: list[tuple[str, str]], text: str) -> float:
    total, previous = Fraction(0), None
    for number, unit in parts:
        length = DURATION_UNITS.get(unit)
        if length is None:
            what = f"the unknown unit {unit!r}" if unit else "a number without a unit"
            raise ValueError(f"{text!r} has {what}; write for example {number}s; the units are {', '.join(DURATION_UNITS)}")
        if previous is not None and length >= previous:
            raise ValueError(f"{text!r} does not go from larger to smaller units; write for example 1h30m")
        total, previous = total + Fraction(number) * length, length
    return float(total)


def format_duration(seconds: float) -> str:
    """`seconds` in at most two units: 0.0042 -> "4.2ms", 75 -> "1m15s", 7260 -> "2h1m"."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.3g}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    whole = round(seconds)
    units = [("d", 86400), ("h", 3600), ("m", 60), ("s", 1)]
    for (large, length), (small, part) in pairwise(units):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length}{large}" + (f"{rest}{small}" if rest else "")
    return f"{whole}s"
