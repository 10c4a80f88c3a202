"""A dimension varied: the law found, the next size predicted and tried."""

import pytest

from ridgeline.cost.study.variation import parse_sweep, sweep
from ridgeline.errors import OutOfMemoryError, UsageError
from ridgeline.records.model import SweepPoint


def point(size: int, *, timed: bool = True, note: str = "") -> SweepPoint:
    """Quadratic work, linear memory, a time that grows in a line."""
    return SweepPoint(
        size=size,
        flops=5 * size * size + 7 * size + 11,
        peak_bytes=1000 + 64 * size,
        median_ms=2.0 + 0.5 * size if timed else None,
        note=note,
    )


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("batch=1,2,4", ("batch", (1, 2, 4))),
        ("seq=512,128,128", ("seq", (128, 512))),
        ("batch= 1, 2", ("batch", (1, 2))),
    ],
)
def test_a_sweep_is_a_dimension_and_sizes(text: str, parsed: tuple[str, tuple[int, ...]]) -> None:
    assert parse_sweep(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "batch", "batch=", "width=1,2", "batch=1,x", "batch=0,1", "batch=1,,2", "=1,2"]
)
def test_an_invalid_sweep_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="not understood"):
        parse_sweep(text)


@pytest.mark.parametrize("text", ["batch=4", "batch=4,4"])
def test_one_size_makes_no_law(text: str) -> None:
    with pytest.raises(UsageError, match="two sizes"):
        parse_sweep(text)


def test_fitted_laws_hold_at_a_size_outside_the_fit() -> None:
    found = sweep("seq", (10, 20, 30, 40), point)
    assert found.laws["flops"].form == "quadratic"
    assert found.laws["flops"].exact
    assert found.laws["peak_bytes"].form == "linear"
    assert found.laws["peak_bytes"].coefficients == pytest.approx((1000, 64))
    assert found.next_size == 50
    for quantity in ("flops", "peak_bytes", "median_ms"):
        assert found.predicted[quantity] == pytest.approx(found.observed[quantity])
    assert found.observed["flops"] == point(50).flops
    assert found.notes == ()


@pytest.mark.parametrize(
    ("sizes", "following"),
    [((1, 2, 4, 8), 16), ((8, 16), 32), ((10, 20, 30), 40), ((1, 5), 10)],
)
def test_the_next_size_follows_the_row(sizes: tuple[int, ...], following: int) -> None:
    asked: list[int] = []

    def at(size: int) -> SweepPoint:
        asked.append(size)
        return point(size)

    assert sweep("batch", sizes, at).next_size == following
    assert asked == [*sizes, following]


def test_without_times_there_is_no_law_of_time() -> None:
    found = sweep("batch", (1, 2, 4), lambda size: point(size, timed=False))
    assert set(found.laws) == {"flops", "peak_bytes"}
    assert "median_ms" not in found.observed
    assert "median_ms" not in found.predicted


def test_a_size_that_could_not_be_run_is_named() -> None:
    def at(size: int) -> SweepPoint:
        fits = size < 8
        return point(size, timed=fits, note="" if fits else "not run: too large")

    found = sweep("batch", (1, 2, 4, 8), at)
    assert found.laws["median_ms"].points == 3
    assert found.notes == ("batch 8: not run: too large", "batch 16: not run: too large")


def test_a_failed_check_keeps_the_prediction_and_gives_the_reason() -> None:
    def at(size: int) -> SweepPoint:
        if size > 4:
            raise OutOfMemoryError("it does not fit")
        return point(size)

    found = sweep("batch", (1, 2, 4), at)
    assert found.predicted
    assert found.observed == {}
    assert found.notes == ("batch 8 could not be tried: it does not fit",)
