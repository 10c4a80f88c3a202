"""The roofline as text."""

import pytest

from ridgeline.report.document import RooflineChart, RooflineMark
from ridgeline.report.renderers.terminal_charts import ROOFLINE_COLUMNS as WIDTH
from ridgeline.report.renderers.terminal_charts import ROOFLINE_LINES as HEIGHT
from ridgeline.report.renderers.terminal_charts import roofline_lines

PEAK, SPEED = 1e12, 1e10


def mark(letter: str, intensity: float, rate: float) -> RooflineMark:
    return RooflineMark(letter=letter, intensity=intensity, flops_per_s=rate)


def draw(peak: float, speed: float, marks: list[RooflineMark], columns: int = 100) -> list[str]:
    chart = RooflineChart(marks=tuple(marks), peaks=(peak,), bandwidth=speed)
    return roofline_lines(chart, columns)


def cells(lines: list[str]) -> list[str]:
    return [line.partition("│")[2].ljust(WIDTH) for line in lines[:HEIGHT]]


def find(lines: list[str], letter: str) -> tuple[int, int]:
    """Row and column of a mark."""
    for y, line in enumerate(cells(lines)):
        if letter in line:
            return y, line.index(letter)
    raise AssertionError(f"no {letter} in the chart")


def ridge_and_roof(lines: list[str]) -> tuple[int, int]:
    """Columns of the arrow under the chart and of the first cell of the roof."""
    top = next(line for line in lines if "─" in line)
    return lines[-2].index("▲") - lines[0].index("│") - 1, top.partition("│")[2].index("─")


def test_a_slope_a_roof_and_the_ridge_between_them() -> None:
    lines = draw(PEAK, SPEED, [mark("A", 1e4, 1e9)])
    assert len(lines) == HEIGHT + 3
    top = next(line for line in lines if "─" in line)
    assert top.lstrip().startswith("1 TFLOP/s │")
    assert lines[-2].strip() == "▲ ridge 100 FLOP/B"
    assert any("╱" in line for line in cells(lines))
    ridge, roof = ridge_and_roof(lines)
    assert abs(ridge - roof) <= 1


def test_the_arrow_stays_under_the_ridge_at_the_right_edge() -> None:
    ridge, roof = ridge_and_roof(draw(PEAK, SPEED, [mark("A", 1.0, 1e9)]))
    assert abs(ridge - roof) <= 1


def test_an_axis_under_the_chart_says_where_it_begins_and_ends() -> None:
    lines = draw(PEAK, SPEED, [mark("A", 1e4, 1e9)])
    corner = lines[0].index("│")
    assert lines[HEIGHT] == " " * corner + "└" + "─" * WIDTH
    # half a decade beyond the ridge at 100 and the mark at 10,000
    begin, *unit, end = lines[-1].split()
    assert (begin, unit, end) == ("32", ["FLOP/byte", "→"], "32000")
    assert lines[-1].index(begin) == corner + 1
    assert len(lines[-1]) == len(lines[HEIGHT])


@pytest.mark.parametrize("columns", [200, 80, 60, 40])
def test_a_chart_is_no_wider_than_its_terminal(columns: int) -> None:
    lines = draw(PEAK, SPEED, [mark("A", 1.0, 1e9), mark("B", 1e6, 1e12)], columns)
    assert max(map(len, lines)) <= min(columns, WIDTH + lines[0].index("│") + 1)
    assert {"A", "B"} <= set("".join(cells(lines)))


def test_a_terminal_too_narrow_for_a_chart_gets_none() -> None:
    assert draw(PEAK, SPEED, [mark("A", 1.0, 1e9)], 30) == []


def test_more_work_a_byte_is_further_right_and_more_work_a_second_higher() -> None:
    lines = draw(PEAK, SPEED, [mark("A", 1.0, 1e8), mark("B", 1000.0, 5e11)])
    (low, left), (high, right) = find(lines, "A"), find(lines, "B")
    assert left < right
    assert high < low


def test_a_mark_on_the_roof_is_on_the_roofs_row() -> None:
    lines = draw(PEAK, SPEED, [mark("A", 1e4, PEAK)])
    row, _ = find(lines, "A")
    assert "─" in cells(lines)[row]


@pytest.mark.parametrize(
    ("intensity", "rate"), [(1e-9, 1.0), (1e12, 1e12), (100.0, 5e13), (1e-3, 1e13)]
)
def test_extreme_marks_stay_on_the_chart(intensity: float, rate: float) -> None:
    lines = draw(PEAK, SPEED, [mark("A", intensity, rate)])
    find(lines, "A")
    assert all(len(line) <= WIDTH for line in map(str.rstrip, cells(lines)))


@pytest.mark.parametrize(
    ("peak", "speed", "marks"),
    [
        (0.0, SPEED, [mark("A", 1.0, 1.0)]),
        (PEAK, 0.0, [mark("A", 1.0, 1.0)]),
        (PEAK, SPEED, []),
        (PEAK, SPEED, [mark("A", 0.0, 1.0), mark("B", 1.0, 0.0)]),
    ],
)
def test_without_something_to_draw_there_is_no_chart(
    peak: float, speed: float, marks: list[RooflineMark]
) -> None:
    assert draw(peak, speed, marks) == []
