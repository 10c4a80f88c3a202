"""The JSON document and the CSV: the promised keys, null where nothing was measured."""

import csv as csv_module
import io
import json
import math

import msgspec
import pytest
from msgspec.structs import replace

from ridgeline.records.facts import Ratio, because
from ridgeline.records.optimized import Optimized, RaceMoment, RaceSummary, SearchCode
from ridgeline.report.document import ForestChart, Section
from ridgeline.report.drawings import CurvesPlot
from ridgeline.report.reasons import explain
from ridgeline.report.renderers import csv as csv_renderer
from ridgeline.report.renderers import json as json_renderer
from ridgeline.report.views.optimized import FIGURES, data, document, figures
from tests.unit.report.made_up_optimized import (
    ALL,
    climbed,
    hostile,
    less_memory,
    nothing_kept,
    ratio,
    rung,
    with_batch,
)


def csv(found: Optimized) -> str:
    return csv_renderer.render(figures(found))


PROMISED = {
    "changes", "verdict", "ratio", "ci_low", "ci_high", "parity", "memory_bytes", "compile_s",
    "break_even_steps", "kept", "reason",
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_every_outcome_is_a_document_that_json_can_write(name: str) -> None:
    made = data(ALL[name]())
    assert json.loads(json_renderer.render(made)) == json.loads(msgspec.json.encode(made))
    assert all(row.keys() >= PROMISED for row in made["ladder"])
    assert made.keys() >= {"total", "patched_script", "diff", "replay", "advice", "schema"}
    assert set(made["total"]) == {"like_for_like", "with_batch"}


def test_the_baseline_and_its_control_come_first() -> None:
    first, second, third, *_ = data(climbed())["ladder"]
    assert (first["kind"], first["ratio"], first["step_ms"]) == ("baseline", 1.0, 152.0)
    assert (second["kind"], second["verdict"], second["ci_high"]) == ("control", "SAME", 1.012)
    assert third["changes"] == ["loader-workers"]
    assert not first["kept"]
    assert not second["kept"]
    assert third["kept"]


def test_a_rung_has_its_figures_or_null() -> None:
    rows = {tuple(row["changes"]): row for row in data(climbed())["ladder"]}
    both = rows["compile", "compile-reduce-overhead"]
    assert (both["verdict"], both["ratio"], both["parity"]) == ("FASTER", 2.14, "equal")
    assert (both["compile_s"], both["break_even_steps"]) == (48.5, 1902)
    assert both["without_ratio"] == 1.42
    assert both["baseline_ratio"] == pytest.approx(2.48 * 1.16 * 1.1 * 2.14)
    assert rows["loader-workers",]["break_even_steps"] == 0
    assert rows["non-blocking",]["break_even_steps"] is None
    untried = rows["threads",]
    assert (untried["verdict"], untried["reason"]) == ("NOT_TRIED", "the work is on the GPU")
    for name in ("ratio", "ci_low", "ci_high", "parity", "memory_bytes", "compile_s", "spent_s"):
        assert untried[name] is None
    assert rows["sdpa",]["verdict"] == "INVALID"


def test_totals_are_separate_and_null_if_not_measured() -> None:
    made = data(with_batch())["total"]
    assert made["like_for_like"]["ratio"] == 6.73
    assert (made["like_for_like"]["before_ms"], made["like_for_like"]["after_ms"]) == (152.3, 22.6)
    assert made["with_batch"]["after_samples_s"] == 2148.0
    assert made["with_batch"]["parity"] == "weak"
    assert data(nothing_kept())["total"] == {"like_for_like": None, "with_batch": None}


def test_the_document_has_every_field_of_the_record() -> None:
    found = climbed()
    made = json.loads(json_renderer.render(data(found)))
    whole = json.loads(msgspec.json.encode(found))
    for key in set(whole) - {"total", "with_batch", "stopped", "rungs", "written"}:
        assert made[key] == whole[key]
    assert made["stopped_reason"] == whole["stopped"]
    for shown, rung_ in zip(made["rungs"], whole["rungs"], strict=True):
        worded = {"earlier": shown["earlier"], "why": shown["why"]}
        assert shown == {**rung_, **worded}
    by_hand = [explain(one) for one in found.written.by_hand] if found.written else []
    assert made["written"] == {**whole["written"], "by_hand": by_hand}
    assert made["patched_script"] == "optimized_train.py"
    assert made["diff"] == whole["written"]["diff"]
    assert data(nothing_kept())["patched_script"] is None


def test_a_value_that_is_not_a_number_is_null() -> None:
    wild = Ratio(value=math.nan, ci_low=0.0, ci_high=math.inf, pairs=1)
    found = Optimized(command="a.py", rungs=(rung("a", "A", "rejected", ratio=wild),))
    row = json.loads(json_renderer.render(data(found)))["ladder"][2]
    assert (row["ratio"], row["ci_low"], row["ci_high"]) == (None, 0.0, None)


def test_a_memory_goal_has_no_break_even_step() -> None:
    assert data(less_memory())["ladder"][2]["break_even_steps"] is None


def test_the_csv_has_a_row_for_each_rung_and_the_columns_of_the_ladder() -> None:
    found = climbed()
    rows = list(csv_module.DictReader(io.StringIO(csv(found))))
    assert tuple(rows[0]) == FIGURES
    told = data(found)["ladder"]
    assert [row["reason"] for row in rows] == [row["reason"] for row in told]
    both = next(row for row in rows if row["changes"].startswith("compile +"))
    assert both["changes"] == "compile + compile-reduce-overhead"
    assert float(both["ratio"]) == 2.14
    assert both["kept"] == "True"


def test_user_text_becomes_no_formula_and_no_second_row() -> None:
    text = csv(hostile())
    rows = list(csv_module.reader(io.StringIO(text)))
    assert len(rows) == 1 + len(data(hostile())["ladder"])
    assert ",'=1+1," in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert csv(replace(hostile(), rungs=())).count("\n") == 3


def test_a_program_that_could_not_be_timed_has_no_figures() -> None:
    made = data(
        Optimized(
            command="five.py",
            stopped=because(SearchCode.BASELINE_TOO_SHORT, ended="", needed_steps=14),
        )
    )
    first = made["ladder"][0]
    assert (first["verdict"], first["ratio"], first["step_ms"]) == ("NOT_TRIED", None, None)
    assert (made["baseline_ms"], made["baseline_bytes"]) == (None, None)


def _sections(found: Optimized) -> dict[str, Section]:
    return {b.title: b for b in document(found).blocks if isinstance(b, Section)}


def test_the_race_is_drawn_with_the_best_set_first() -> None:
    found = climbed()
    raced = {"autocast": ratio(1.1), "loader-workers": ratio(2.4), "tf32": ratio(0.9)}
    rungs = tuple(replace(rung, raced=raced.get(rung.fix)) for rung in found.rungs)
    course = (
        RaceMoment(at_s=4.0, measured=2, best=1.0),
        RaceMoment(at_s=9.0, measured=3, best=2.9),
    )
    race = RaceSummary(measured=3, ratio=ratio(2.9), control=ratio(1.001), course=course)
    blocks = [
        block
        for section in _sections(replace(found, rungs=rungs, race=race)).values()
        for block in section.blocks
    ]
    charts = [block for block in blocks if isinstance(block, ForestChart)]
    assert [mark.value for mark in charts[0].marks] == [2.9, 2.4, 1.1, 0.9, 1.001]
    assert [mark.tone for mark in charts[0].marks] == ["good", "good", "good", "bad", "plain"]
    (curves,) = [b for b in blocks if isinstance(b, CurvesPlot) and b.x_unit == "s"]
    assert curves.x == (0.0, 4.0, 9.0)
    assert curves.curves[0].values == (1.0, 1.0, 2.9)


def test_losses_are_drawn_over_each_other_as_far_as_both_are_known() -> None:
    found = climbed()
    assert found.total is not None
    known = replace(found.total, losses_before=(4.0, None, 3.0, 2.5), losses_after=(4.0, 3.5, 3.0))
    (plot,) = _sections(replace(found, total=known))["Losses"].blocks
    assert isinstance(plot, CurvesPlot)
    assert [curve.values for curve in plot.curves] == [(4.0, None, 3.0), (4.0, 3.5, 3.0)]
    assert "Losses" not in _sections(found)
