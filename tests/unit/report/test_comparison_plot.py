"""Plots: well-formed, to scale, with what lies off the scale marked."""

from math import nan
from xml.etree import ElementTree

import pytest

from ridgeline.records.comparison import Comparison
from ridgeline.report.document import ForestChart, RoundsChart, SamplesChart
from ridgeline.report.renderers.charts import draw, fenced
from ridgeline.report.views.comparison import document
from tests.unit.report.made_up_comparison import candidate, comparison, estimate, variant

SVG = "{http://www.w3.org/2000/svg}"


def picture(c: Comparison, kind: type) -> str:
    (chart,) = [block for block in document(c).blocks if isinstance(block, kind)]
    return draw(chart)


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def centre(root: ElementTree.Element, name: str) -> float:
    found = [
        c for c in root.iter(f"{SVG}circle") if (c.findtext(f"{SVG}title") or "").startswith(name)
    ]
    return float(found[0].attrib["cx"])


def test_a_faster_candidate_stands_right_of_the_control_and_a_slower_one_left() -> None:
    c = comparison(candidate("up"), candidate("down", "SLOWER", estimate(0.8, 0.75, 0.85)))
    root = drawn(picture(c, ForestChart))
    assert centre(root, "down") < centre(root, "A/A control") < centre(root, "up")


def test_nothing_is_drawn_outside_the_picture() -> None:
    c = comparison(candidate("x" * 80, figure=estimate(1e9, 1e-9, 1e12)))
    root = drawn(picture(c, ForestChart))
    places = [
        float(v) for e in root.iter() for k, v in e.attrib.items() if k in ("x", "x1", "x2", "cx")
    ]
    assert min(places) >= 0
    assert max(places) <= 760


def test_a_stall_is_marked_at_the_edge_and_does_not_flatten_the_rest() -> None:
    steady = [10e6 + 1e4 * (i % 7) for i in range(59)]
    c = comparison(baseline=variant("slow", 10e6, samples_ns=(*steady, 900e6)))
    text = picture(c, SamplesChart)
    drawn(text)
    assert "round 60: 900 ms" in text
    assert "1 off the scale (▲)" in text
    assert fenced([*steady, 900e6]).high < 11e6


def test_every_other_sample_is_a_dot() -> None:
    quiet = variant("slow", 10e6, samples_ns=tuple(10e6 + 1e4 * (i % 7) for i in range(60)))
    root = drawn(
        picture(comparison(candidate(of_variant={"samples_ns": ()}), baseline=quiet), SamplesChart)
    )
    (dots,) = [p for p in root.iter(f"{SVG}path") if "dots" in p.attrib["class"]]
    assert dots.attrib["d"].count("M") == 60


def test_a_sample_that_is_no_number_leaves_a_gap() -> None:
    holed = variant("slow", 10e6, samples_ns=(1e7, nan, 1.1e7))
    text = picture(
        comparison(candidate(of_variant={"samples_ns": ()}), baseline=holed), SamplesChart
    )
    assert "nan" not in text
    drawn(text)


def test_the_histogram_counts_every_round_once() -> None:
    base, fast = (
        [m * (1 + 0.01 * ((i * k) % 11)) for i in range(60)] for m, k in ((12e6, 3), (9e6, 7))
    )
    base[5] *= 40
    c = comparison(
        candidate(of_variant={"samples_ns": tuple(fast)}),
        baseline=variant("s", samples_ns=tuple(base)),
    )
    text = picture(c, RoundsChart)
    tips = [t.text or "" for t in drawn(text).iter(f"{SVG}title")]
    counted = sum(int(t.split(": ")[1].split()[0]) for t in tips if t.endswith(("round", "rounds")))
    assert counted == 59
    assert "0 below and 1 above what is drawn" in text


def test_by_item_the_ratios_are_of_time_an_item() -> None:
    wide = candidate(figure=estimate(2.0, 1.9, 2.1), throughput_ratio=2.0,
                     of_variant={"items": 64.0, "samples_ns": (1e7, 1e7, 1e7)})  # fmt: skip
    base = variant("s", 1e7, items=32.0, samples_ns=(1e7, 1e7, 1e7))
    c = comparison(wide, baseline=base, goal="throughput")
    assert "0 below and 0 above" in picture(c, RoundsChart)
    bars = [t.text or "" for t in drawn(picture(c, RoundsChart)).iter(f"{SVG}title")]
    (bar,) = [t for t in bars if t.endswith("3 rounds")]
    low, high = (float(part) for part in bar.split(":")[0].split(" to "))
    assert low <= 2.0 <= high


@pytest.mark.parametrize("values", [(), (1e7,)])
def test_a_chart_with_too_few_values_is_not_drawn(values: tuple[float, ...]) -> None:
    c = comparison(
        candidate(of_variant={"samples_ns": values}), baseline=variant("s", samples_ns=values)
    )
    assert picture(c, RoundsChart) == ""


def test_without_an_estimate_only_the_control_is_in_the_forest() -> None:
    c = comparison(candidate(figure=estimate(nan, nan, nan)))
    assert picture(c, ForestChart).count("<circle") == 1
    bare = comparison(
        candidate(of_variant={"samples_ns": ()}), baseline=variant("s", samples_ns=())
    )
    assert picture(bare, SamplesChart) == ""
