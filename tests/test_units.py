from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.units import (
    GIB,
    MIB,
    Share,
    format_duration,
    format_size,
    parse_duration,
    parse_share,
    parse_size,
    parse_size_or_share,
)


@given(st.integers(0, 1 << 60))
def test_sizes_come_back_as_they_were(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(0, 10**12).map(lambda milliseconds: milliseconds / 1000))
def test_durations_come_back_as_they_were(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.decimals(0, 100, places=3).map(float))
def test_shares_come_back_as_they_were(percent: float) -> None:
    assert parse_share(str(Share(percent))) == Share(percent)


@given(st.integers(0, 100), st.integers(0, 1 << 60))
def test_a_share_is_exact_and_never_more_than_all(percent: int, total: int) -> None:
    assert Share(percent).of(total) == total * percent // 100


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GiB", 8 * GIB),
        ("32MiB", 32 * MIB),
        ("1.5 GiB", 3 * GIB // 2),
        ("8gib", 8 * GIB),
        ("2GB", 2 * 10**9),
        ("500kB", 500_000),
        ("1000", 1000),
        ("7B", 7),
        (4096, 4096),
        (" 0 ", 0),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size_or_share(text) == size


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("8G", "8GiB"),
        ("1.5m", "1.5MiB"),
        ("8 apples", "KiB, MiB"),
        ("", "32MiB"),
        ("-1", "32MiB"),
        (-1, "negative"),
        ("GiB", "8GiB"),
        ("1e3", "1e3"),
        ("8GiB 1", "8GiB"),
        (True, "True"),
        ("\u0663GiB", "8GiB"),
    ],
)
def test_what_is_no_size_says_what_would_be(text: str | int, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        (0, 0),
        ("30s", 30),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("30d", 30 * 86400),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("0s", 0),
    ],
)
def test_durations(text: str | int, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("10", "10s"),
        (10, "10s"),
        ("", "1h30m"),
        ("5 minutes", "1h30m"),
        ("30s10m", "1h30m"),
        ("-5s", "1h30m"),
    ],
)
def test_what_is_no_duration_says_what_would_be(text: str | int, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "hint"), [("101%", "at most 100%"), ("%", "20%"), ("-1%", "20%"), ("20", "20%")]
)
def test_what_is_no_share_says_what_would_be(text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        parse_share(text)


def test_a_percent_sign_makes_a_share_of_a_size() -> None:
    assert parse_size_or_share("20%") == Share(20.0)
    assert str(Share(20.0)) == "20%"
    assert str(Share(12.5)) == "12.5%"
