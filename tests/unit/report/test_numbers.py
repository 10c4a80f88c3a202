"""Ratios, intervals, times and a whole timing as people read them."""

from math import inf, nan

import pytest
from msgspec.structs import replace

from ridgeline.records.latency import Latency
from ridgeline.report.numbers import interval, median, times, timing_text
from ridgeline.report.views.comparison import band_meaning
from tests.unit.report.made_up_comparison import comparison, variant


@pytest.mark.parametrize(
    ("ratio", "low", "high", "written"),
    [
        (1.31, 1.27, 1.35, "1.31 [1.27, 1.35]"),
        (0.96, 0.95, 0.97, "0.96 [0.95, 0.97]"),
        (31.24, 30.6, 31.9, "31.2 [30.6, 31.9]"),
        (12_345.6, 12_000.0, 12_700.0, "12,346 [12,000, 12,700]"),
        (10.84, 0.706, 163.6, "10.8 [0.706, 164]"),
        (4000.0, 1500.0, 9000.0, "4,000 [1,500, 9,000]"),
        (3.38, 1.2e-7, 9e7, "3.38 [<0.001, >1,000]"),
        (0.0312, 0.0305, 0.0319, "0.0312 [0.0305, 0.0319]"),
        (0.00041, 0.00039, 0.00043, "0.00041 [0.00039, 0.00043]"),
    ],
)
def test_a_ratio_and_its_interval_share_their_decimals(
    ratio: float, low: float, high: float, written: str
) -> None:
    assert interval(ratio, low, high) == written


def test_a_narrow_interval_is_printed_with_more_decimals() -> None:
    assert interval(1.0312, 1.0306, 1.0318) == "1.0312 [1.0306, 1.0318]"


def test_an_end_just_beside_1_is_not_rounded_onto_it() -> None:
    assert interval(1.02, 0.998, 1.04) == "1.020 [0.998, 1.040]"
    assert interval(1.02, 1.002, 1.04) == "1.020 [1.002, 1.040]"


def test_a_value_that_is_not_a_number_is_a_dash() -> None:
    assert interval(nan, nan, nan) == "—"
    assert interval(0.0, 0.0, 1.0) == "—"
    assert interval(1.2, nan, inf) == "1.20 [—, —]"


@pytest.mark.parametrize(
    ("ratio", "written"),
    [(1.036, "1.04 ×"), (3.238, "3.2 ×"), (123.4, "123 ×"), (0.03, "0.03 ×"), (nan, "—")],
)
def test_a_ratio_without_an_interval(ratio: float, written: str) -> None:
    assert times(ratio) == written


def test_a_median_names_its_unit_once_where_all_share_it() -> None:
    assert median(variant(median_ns=12.3e6).summary) == "12.3 ms [12.2, 12.4]"
    assert median(variant(median_ns=1.005e6).summary) == "1.01 ms [995 µs, 1.02 ms]"


def test_the_band_is_how_much_identical_code_differed_if_that_is_more() -> None:
    assert comparison().noise_band == 0.02
    assert comparison(threshold=0.001).noise_band == 0.008
    assert band_meaning(comparison()) == "± 2 % does not matter"
    said = band_meaning(comparison(threshold=0.001))
    assert said == "± 0.8 % is how much identical code differed here"


def timed(**changed: object) -> Latency:
    latency = Latency(
        summary=variant(median_ns=12.3e6).summary,
        samples_ns=(),
        block_calls=4,
        warmup_ns=(),
        steady=True,
        clock="wall",
        wall_median_ns=12.3e6,
    )
    return replace(latency, **changed)


def test_a_timing_is_one_line() -> None:
    assert (
        timing_text(timed(), "step") == "step  12.3 ms [12.2, 12.4] · 60 samples of 4 calls · wall"
    )


def test_percentiles_are_printed_only_with_enough_samples() -> None:
    summary = replace(timed().summary, p95_ns=13e6, p99_ns=15.5e6)
    assert " · p95 13 ms · p99 15.5 ms · " in timing_text(timed(summary=summary), "step")


def test_warnings_follow_in_lines_of_their_own() -> None:
    text = timing_text(timed(warnings=("the machine was busy",)), "step")
    assert text.splitlines()[1:] == ["  warning: the machine was busy"]


def test_one_call_a_sample_is_not_mentioned() -> None:
    assert " · 60 samples · wall" in timing_text(timed(block_calls=1), "step")
