"""Numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import units
from ridgeline.errors import UsageError
from ridgeline.units import parse_seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (25, "25"),
        (999, "999"),
        (1000, "1 k"),
        (25_557_032, "25.6 M"),
        (999_600, "1 M"),
        (-1234, "-1.23 k"),
        (math.nan, "—"),
        (math.inf, "—"),
    ],
)
def test_counts_use_si_prefixes(value: float, text: str) -> None:
    assert units.count(value) == text


def test_arithmetic_is_an_amount_or_a_rate() -> None:
    assert units.flop(8.178e9) == "8.18 GFLOP"
    assert units.flops(784e12) == "784 TFLOP/s"
    assert units.flops(1.417e15) == "1.42 PFLOP/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1000 * 1024, "1000 KiB"),
        (1023.9 * 1024, "1 MiB"),
        (7.9 * 1024**3, "7.9 GiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_sizes_use_binary_prefixes(value: float, text: str) -> None:
    assert units.bytes_(value) == text


def test_bandwidth_uses_si_prefixes_like_a_datasheet() -> None:
    assert units.bandwidth(4.26e12) == "4.26 TB/s"
    assert units.bandwidth(864e9) == "864 GB/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (3.2e-10, "0.32 ns"),
        (850e-9, "850 ns"),
        (3.42e-6, "3.42 µs"),
        (12.3e-3, "12.3 ms"),
        (0.9997, "1 s"),
        (59.94, "59.9 s"),
        (59.99, "1 min"),
        (125, "2 min 5 s"),
        (3599.7, "1 h"),
        (3780, "1 h 3 min"),
        (-0.5, "-500 ms"),
        (math.nan, "—"),
    ],
)
def test_seconds_pick_their_own_unit(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0, "0 %"), (0.953, "95.3 %"), (1, "100 %"), (12.34, "1230 %"), (0.00012, "0.012 %")],
)
def test_percent_takes_a_fraction(ratio: float, text: str) -> None:
    assert units.percent(ratio) == text


@given(st.floats(min_value=1e-3, max_value=1e17))
def test_no_more_than_three_digits_before_the_prefix(value: float) -> None:
    number = units.count(value).split()[0]
    assert abs(float(number)) < 1000
    assert len(number.replace(".", "").lstrip("0")) <= 3


def test_a_time_is_a_number_or_text_with_a_unit() -> None:
    written = ("90s", "2m", "1.5 min", "1h", "7", 8, 0.5, "500ms", "7d", "1w")
    seconds = [90, 120, 90, 3600, 7, 8, 0.5, 0.5, 604800, 604800]
    assert [parse_seconds("budget", amount) for amount in written] == seconds


@pytest.mark.parametrize("amount", ["soon", "", "0s", "-5m", "5 years", 0, -1, True, math.inf])
def test_text_that_is_not_a_time_is_refused(amount: str | float) -> None:
    with pytest.raises(UsageError):
        parse_seconds("budget", amount)
