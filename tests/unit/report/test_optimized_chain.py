"""How far a rung stands from the unchanged program, and where that does not end as the whole."""

import pytest
from msgspec.structs import replace

from ridgeline.records.facts import Ratio, because
from ridgeline.records.ladder import Ladder
from ridgeline.records.optimized import Optimized, Rung, SearchCode
from ridgeline.report.renderers import markdown
from ridgeline.report.views.optimized import document
from ridgeline.report.views.optimized_phrases import disagreement
from ridgeline.report.views.optimized_pictures import levels
from tests.unit.report.made_up_optimized import (
    climbed,
    disturbed,
    less_memory,
    ratio,
    rung,
    step,
    total,
    with_batch,
)
from tests.unit.report.rendered import bare_page, tables


def cumulative(found: Optimized, rung: Rung) -> float | None:
    return Ladder(found).cumulative(rung)


def remark(found: Optimized) -> str:
    return disagreement(Ladder(found))


def of(*rungs: Rung, whole: Ratio | None = None) -> Optimized:
    known = replace(total(), ratio=whole, fixes=tuple(r.fix for r in rungs)) if whole else None
    return replace(climbed(), rungs=rungs, total=known)


def test_the_cumulative_gain_is_the_product_of_the_ratios_of_the_rungs() -> None:
    found = climbed()
    by_change = {one.fix: cumulative(found, one) for one in found.rungs}
    assert by_change["loader-workers"] == pytest.approx(2.48)
    assert by_change["tf32"] == pytest.approx(2.48 * 1.16)
    assert by_change["compile"] == pytest.approx(2.48 * 1.16 * 1.1 * 2.14)
    assert by_change["compile-reduce-overhead"] == by_change["compile"]


def test_a_disturbed_baseline_does_not_change_the_rungs() -> None:
    calm, loud = (tables(document(made()))[0].rows[1:-1] for made in (climbed, disturbed))
    assert [row.cells for row in loud] == [row.cells for row in calm]
    notes = [level.note for level in levels(Ladder(disturbed())) if "× baseline" in level.note]
    calm_levels = levels(Ladder(climbed()))
    assert notes == [level.note for level in calm_levels if "× baseline" in level.note]


def test_a_fix_not_kept_is_compared_with_the_kept_ones_and_adds_nothing() -> None:
    first, last = step("a", "A", 2.0, 100.0), step("c", "C", 1.5, 50.0, beside=("a",))
    left = rung("b", "B", "rejected", "slower", ratio=ratio(0.5), beside=("a",))
    found = of(first, left, last)
    assert cumulative(found, left) == pytest.approx(1.0)
    assert cumulative(found, last) == pytest.approx(3.0)


def test_the_gain_of_fixes_tried_together_counts_once_even_if_one_was_dropped() -> None:
    both = {"ratio": ratio(3.0), "beside": ()}
    kept = rung("a", "A", "kept", "", together=("b",), **both)
    gone = rung("b", "B", "dropped", "of no use", together=("a",), without=ratio(1.0), **both)
    last = step("c", "C", 1.5, 30.0, beside=("a",))
    found = of(kept, gone, last, whole=ratio(4.5))
    assert cumulative(found, gone) == pytest.approx(3.0)
    assert cumulative(found, last) == pytest.approx(4.5)
    assert remark(found) == ""


def test_a_dropped_fix_is_not_part_of_the_cumulative_gain() -> None:
    first = step("a", "A", 2.0, 100.0)
    harm = step(
        "b",
        "B",
        1.5,
        50.0,
        status="dropped",
        reason=because(SearchCode.LARGER_BATCH_BETTER),
        without=ratio(0.8),
    )
    found = of(first, harm, whole=ratio(3.75))
    assert Ladder(found).product == pytest.approx(3.0 / 0.8)
    assert not Ladder(found).disagrees


def test_other_training_and_fixes_without_ratio_are_not_on_the_ladder() -> None:
    found = with_batch()
    assert cumulative(found, found.rungs[-1]) is None
    assert Ladder(found).product == Ladder(climbed()).product
    bare = rung("a", "A", "rejected", "it raised")
    assert cumulative(of(bare), bare) is None
    assert Ladder(of(bare)).product is None


def test_other_goals_have_a_cumulative_gain() -> None:
    memory = less_memory()
    assert cumulative(memory, memory.rungs[0]) == pytest.approx(1.64)
    energy = replace(climbed(), measured="energy a sample")
    assert cumulative(energy, energy.rungs[0]) == pytest.approx(2.48)


@pytest.mark.parametrize(
    ("whole", "told"),
    [
        (Ratio(value=2.0, ci_low=1.9, ci_high=2.1, pairs=3), False),
        (Ratio(value=1.5, ci_low=1.4, ci_high=1.6, pairs=3), True),
        (Ratio(value=2.6, ci_low=2.5, ci_high=2.7, pairs=3), True),
        # A peak of memory hardly varies: what its interval leaves out need not matter.
        (Ratio(value=1.98, ci_low=1.979, ci_high=1.981, pairs=3), False),
        (Ratio(value=1.5, ci_low=0.4, ci_high=6.0, pairs=2), False),
    ],
)
def test_a_ladder_that_disagrees_with_the_confirmed_gain_is_remarked(
    whole: Ratio, told: bool
) -> None:
    found = of(step("a", "A", 2.0, 100.0), whole=whole)
    assert bool(remark(found)) == told


def test_the_remark_says_which_figure_counts_and_why_the_other_does_not() -> None:
    said = remark(disturbed())
    assert said == (
        "The ratios of the rungs multiply to 6.77 ×, outside the confirmed interval, "
        "4.63 × [4.40, 4.90]: the machine was disturbed while they were measured, or fixes were "
        "kept because their "
        "measurement was lucky. What was measured in fresh processes counts."
    )
    higher = of(step("a", "A", 2.0, 100.0), whole=ratio(3.0))
    assert "lucky" not in remark(higher)
    for render in (markdown.render, bare_page):
        text = render(document(disturbed()))
        assert text.index("× rung before") < text.index(
            "The ratios of the rungs multiply to 6.77 ×"
        )
        assert "The ratios of the rungs multiply" not in render(document(climbed()))
