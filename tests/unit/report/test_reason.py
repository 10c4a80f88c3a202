"""The sentence behind a verdict has the numbers that decided it."""

from ridgeline.report.views.model import bottleneck_reason as reason
from tests.unit.report.made_up import placement


def test_the_reason_has_the_three_floors_and_the_share_they_explain() -> None:
    text = reason(placement())
    assert text == (
        "operators limited by arithmetic need 200 µs, those limited by memory 1 ms, issuing "
        "3 operators 500 µs; "
        "2 ms measured, 60 % explained"
    )


def test_an_untimed_model_is_explained_without_shares() -> None:
    assert reason(placement(measured_ms=None)).endswith("; not timed")


def test_overhead_explains_what_it_is_larger_than() -> None:
    assert reason(placement(overhead_ms=1.8)).endswith("2 ms measured, 90 % explained")


def test_a_model_faster_than_memory_is_said_to_run_from_cache() -> None:
    text = reason(placement(memory_limited_ms=5.0))
    assert text.endswith("2 ms measured: less than through memory each time, caches helped")


def test_ceilings_that_explain_little_are_marked_as_weak() -> None:
    assert reason(placement(measured_ms=100.0)).endswith(
        "100 ms measured, 1 % explained: something else takes the rest"
    )


def test_a_waiting_device_is_named() -> None:
    text = reason(placement(host_limited=True))
    assert "the host was still issuing when the device had finished" in text
    assert "still issuing" not in reason(placement())
