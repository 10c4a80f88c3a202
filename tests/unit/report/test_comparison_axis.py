"""The axis of ratios, and the chart of text on it."""

from math import inf

import pytest

from ridgeline.records.comparison import Comparison, Control
from ridgeline.report.document import ForestChart
from ridgeline.report.numbers import axis
from ridgeline.report.renderers.terminal_charts import forest_lines
from ridgeline.report.views.comparison import document
from tests.unit.report.made_up_comparison import candidate, comparison, estimate


def draw(c: Comparison, columns: int) -> list[str]:
    (chart,) = [block for block in document(c).blocks if isinstance(block, ForestChart)]
    return forest_lines(chart, columns)


@pytest.mark.parametrize(
    ("low", "high"), [(0.99, 1.01), (0.9, 1.4), (0.5, 2.0), (0.03, 40.0), (1e-5, 1e5), (1.0, 1e9)]
)
def test_ticks_are_few_and_1_is_one_of_them(low: float, high: float) -> None:
    ticks = axis([(low, low, low), (high, high, high)], 0.02).ticks
    assert 3 <= len(ticks) <= 7
    assert 1 in ticks
    assert list(ticks) == sorted(ticks)


def test_halving_and_doubling_lie_equally_far_from_1() -> None:
    found = axis([(0.5, 1.0, 2.0)], 0.02)
    assert found.place(1) - found.place(0.5) == pytest.approx(found.place(2) - found.place(1))


def test_an_infinite_end_of_an_interval_lies_at_the_edge() -> None:
    found = axis([(0.0, 1.2, inf)], 0.02)
    assert found.place(inf) == 1
    assert found.place(0.0) == 0


def test_a_variant_without_figures_leaves_room_for_the_others() -> None:
    lost = Control(estimate=estimate(3.4, 1e-7, 9e7), floor=2.4, differs=False)
    control, fast, *_ = draw(
        comparison(candidate(figure=estimate(14.5, 9.0, 24.0)), control=lost), 80
    )
    assert "◀" in control
    assert "▶" in control
    assert fast.index("┤") - fast.index("├") > 5


def test_an_interval_is_drawn_beyond_the_band_and_the_control_inside_it() -> None:
    control, fast, labels, legend = draw(comparison(), 80)
    assert control.startswith("A/A control")
    assert fast.rindex("░") < fast.index("├") < fast.index("●") < fast.index("┤")
    assert control.index("░") < control.index("●") < control.rindex("░")
    assert fast.index("│") == labels.index("1")
    assert "± 2 % does not matter" in legend


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_chart_keeps_within_the_columns(columns: int) -> None:
    lines = draw(comparison(candidate("a/very/long/path/to/some_candidate.py:step")), columns)
    assert lines
    assert max(map(len, lines)) <= columns


def test_a_long_name_keeps_its_end() -> None:
    lines = draw(comparison(candidate("a/very/long/path/to/some_candidate.py:step")), 80)
    assert lines[1].startswith("…")
    assert "some_candidate.py:step " in lines[1]


def test_a_terminal_without_room_gets_no_chart() -> None:
    assert draw(comparison(), 30) == []


def test_huge_and_tiny_ratios_share_one_chart() -> None:
    both = comparison(
        candidate("up", figure=estimate(4000.0, 3900.0, 4100.0)),
        candidate("down", "SLOWER", estimate(0.002, 0.0019, 0.0021)),
    )
    _, up, down, *_ = draw(both, 100)
    assert down.index("●") < up.index("●")
