"""Sizes and durations."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.units import (
    DURATION_PATTERN,
    DURATION_UNITS,
    RATE_PATTERN,
    SIZE_PATTERN,
    SIZE_UNITS,
    format_duration,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 kb", 1500),
        ("0.5KiB", 512),
        (" 7 B ", 7),
        (123, 123),
        ("1EiB", 2**60),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("4G", "4GB"),
        ("4", "4GB"),
        ("GB", "4GB or 512MiB"),
        ("-4GB", "4GB or 512MiB"),
        ("4 Gb it", "4GB or 512MiB"),
        ("0.3B", "not a whole number of bytes"),
        ("9000000EB", "outside"),
        ("٤GB", "4GB or 512MiB"),
        (True, "is not a size"),
        (1.5, "is not a size"),
        (-1, "outside"),
    ],
)
def test_refused_sizes_say_what_would_be_right(text: str, right: str) -> None:
    with pytest.raises(ValueError, match=re.escape(right)):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30.0), ("250ms", 0.25), ("1h30m", 5400.0), ("1d 2h", 93600.0), (5, 5.0), (0.5, 0.5), ("1.5m", 90.0), (0, 0.0)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["5x", "5", "s", "-5s", "30m1h", "1m1m", "", True, float("inf"), float("nan"), -1.0, "1h 5", "1h,5m", None]
)
def test_refused_durations(text: object) -> None:
    with pytest.raises(ValueError, match=r"write|larger to smaller"):
        parse_duration(text)  # type: ignore[arg-type]


@given(st.integers(0, 10**6), st.sampled_from(sorted(SIZE_UNITS)))
def test_whole_sizes_are_exact(count: int, unit: str) -> None:
    if count * SIZE_UNITS[unit] < 2**63:
        assert parse_size(f"{count}{unit}") == count * SIZE_UNITS[unit]
        assert re.match(SIZE_PATTERN, f"{count}{unit}")


@given(st.integers(0, 10**6), st.sampled_from(sorted(DURATION_UNITS)))
def test_whole_durations_are_exact(count: int, unit: str) -> None:
    assert parse_duration(f"{count}{unit}") == float(count * DURATION_UNITS[unit])
    assert re.match(DURATION_PATTERN, f"{count}{unit}")


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    def outcome(parse: Callable[[str], float]) -> float | str:
        try:
            return parse(text)
        except ValueError as error:
            return str(error)

    for parse in (parse_size, parse_duration):
        found = outcome(parse)
        assert repr(text) in found if isinstance(found, str) else found >= 0


@given(st.integers(0, 2**63 - 1))
def test_formatted_sizes_are_short_and_close(size: int) -> None:
    text = format_size(size)
    number, unit = text.split()
    assert len(number) <= 4
    assert abs(float(number) * SIZE_UNITS[unit] - size) <= size * 0.006


def test_formatted_durations() -> None:
    assert [format_duration(seconds) for seconds in (0, 0.0042, 7.5, 75, 60, 7260, 90000)] == [
        "0s",
        "4.2ms",
        "7.5s",
        "1m15s",
        "1m",
        "2h1m",
        "1d1h",
    ]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("10MB/s", 10**7), ("100Mbit/s", 12_500_000), ("1.5 KiB/s", 1536), ("12bit/s", 1), ("8 kbit/s", 1000), (500, 500)],
)
def test_rates(text: str | int, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["10MB", "10Mb/s", "10", "fast", "7bit/s", "0B/s", "-1B/s", 0, True, 1.5, "10MBps"])
def test_refused_rates_say_what_would_be_right(text: object) -> None:
    with pytest.raises(ValueError, match=r"10MB/s or 100Mbit/s|1 to 9223372036854775807 bytes a second"):
        parse_rate(text)  # type: ignore[arg-type]


@given(st.integers(1, 10**6), st.sampled_from(["", *"KMG", "Ki", "Mi"]), st.sampled_from(["B", "bit"]))
def test_rates_that_are_read_fit_the_pattern(number: int, prefix: str, kind: str) -> None:
    text = f"{number}{prefix}{kind}/s"
    assert re.fullmatch(RATE_PATTERN, text)
    if kind == "B" or number >= 8:
        assert parse_rate(text) == number * SIZE_UNITS[f"{prefix}B"] // (8 if kind == "bit" else 1)
