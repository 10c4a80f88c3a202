"""A timing, printed."""

from msgspec.structs import replace

from ridgeline.records.latency import Latency
from ridgeline.report.numbers import timing_text
from tests.unit.report.made_up_comparison import variant


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


def test_percentiles_stand_where_the_samples_carry_them() -> None:
    summary = replace(timed().summary, p95_ns=13e6, p99_ns=15.5e6)
    assert " · p95 13 ms · p99 15.5 ms · " in timing_text(timed(summary=summary), "step")


def test_warnings_follow_in_lines_of_their_own() -> None:
    text = timing_text(timed(warnings=("the machine was busy",)), "step")
    assert text.splitlines()[1:] == ["  warning: the machine was busy"]


def test_one_call_a_sample_needs_no_words() -> None:
    assert " · 60 samples · wall" in timing_text(timed(block_calls=1), "step")
