"""A whole that fresh processes did not confirm reads like no win, wherever it is read."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.records.facts import Ratio, because
from ridgeline.records.ladder import Ladder
from ridgeline.records.optimized import Optimized, SearchCode
from ridgeline.records.trial import TrialFailure
from ridgeline.report.document import Span
from ridgeline.report.reasons import explain
from ridgeline.report.renderers import charts
from ridgeline.report.renderers import markdown as markdown_renderer
from ridgeline.report.views import optimized_phrases as phrases
from ridgeline.report.views.optimized import data, document
from ridgeline.report.views.optimized_pictures import waterfall as chart
from tests.unit.report.made_up_optimized import (
    ALL,
    HOSTILE,
    climbed,
    doubtful,
    hostile,
    interrupted,
    nothing_kept,
    parity,
    total,
    unconfirmed,
)
from tests.unit.report.rendered import at_terminal, bare_page


def shown(found: Optimized) -> str:
    return at_terminal(document(found), 120)


def page(found: Optimized) -> str:
    return bare_page(document(found))


def markdown(found: Optimized) -> str:
    return markdown_renderer.render(document(found))


def headline(found: Optimized) -> Span:
    return Span(*phrases.headline(Ladder(found)))


def doubt(found: Optimized) -> str:
    return phrases.doubt(Ladder(found))


def doubts(found: Optimized) -> tuple[str, ...]:
    return phrases.doubts(Ladder(found))


def of(low: float, pairs: int, value: float = 1.6) -> Optimized:
    known = Ratio(value=value, ci_low=low, ci_high=4.0, pairs=pairs)
    return replace(doubtful(), total=replace(total(), ratio=known, confirmed=False))


def test_a_doubtful_headline_begins_with_what_is_not_proven() -> None:
    assert headline(doubtful()).text == (
        "Not confirmed, and it may be no gain at all: 2.39 × [0.59, 9.76] as fast, "
        "152 ms → 22.6 ms a step"
    )
    assert headline(of(1.1, 3)).text.startswith(
        "Not confirmed, though likely: 1.6 × [1.1, 4] as fast"
    )
    assert {headline(doubtful()).tone, headline(of(1.1, 3)).tone} == {"unsure"}


def test_the_doubt_gives_the_reason_the_worth_of_the_copy_and_the_remedy() -> None:
    assert doubt(doubtful()) == (
        "2 fresh pairs cannot tell it from no gain: two processes of the same program differ by "
        "64 % here; optimized_train.py was written all the same: treat it as a guess; what to do: "
        "give it more --budget"
    )
    assert doubt(of(1.1, 3)).startswith("3 fresh pairs are not enough to be sure of it: ")


def test_every_format_has_the_doubt_before_the_ladder() -> None:
    said = "optimized_train.py was written all the same: treat it as a guess"
    text = " ".join(shown(doubtful()).split())
    assert text.index(said) < text.index("× baseline")
    made = " ".join(markdown(doubtful()).replace("\\", "").split())
    assert made.startswith("### Not confirmed, ")
    assert made.index(said) < made.index("× rung before")
    html = page(doubtful())
    heading = html.index('<h1><span class="unsure">Not confirmed')
    assert heading < html.index(said) < html.index("<svg")
    assert "Not confirmed" in charts.waterfall(chart(Ladder(doubtful())), headed=True)
    whole = data(doubtful())
    assert whole["confirmed"] is False
    assert whole["summary"].startswith("Not confirmed")
    assert whole["doubts"] == [doubt(doubtful())]


def test_the_advice_is_one_that_can_help() -> None:
    assert doubt(of(0.8, 5)).endswith("give it more --budget")
    # As many pairs as are ever run: no budget runs more.
    assert doubt(of(0.8, 6)).endswith("measure again when nothing else runs on this machine")
    function = replace(of(0.8, 2), form="function", written=None)
    assert doubt(function).endswith("give it more budget")
    assert doubt(interrupted()).endswith("call it again: it continues from here")
    assert doubt(unconfirmed()).endswith("give it more --budget")
    failed = replace(
        unconfirmed(),
        stopped=because(
            SearchCode.PROOF_FAILED, cause=because(TrialFailure.RAISED, error="ValueError")
        ),
    )
    assert doubt(failed) == explain(failed.stopped)


def test_a_copy_with_different_results_is_not_recommended() -> None:
    other = replace(climbed(), total=replace(total(), parity=parity("differs", 0.4)))
    assert doubt(other).startswith("optimized_train.py was written all the same: do not use it")
    assert doubt(replace(other, written=None)) == ""


@pytest.mark.parametrize("made", [climbed, nothing_kept])
def test_a_result_without_doubts_has_no_doubt_line(made: object) -> None:
    assert callable(made)
    assert doubt(made()) == ""
    assert data(made())["doubts"] == []


@pytest.mark.parametrize("name", ALL)
def test_only_a_proven_result_reads_like_a_gain(name: str) -> None:
    found = ALL[name]()
    won = headline(found).text[0].isdigit() or headline(found).text.startswith("Uses ")
    assert won == (data(found)["confirmed"] is True)


def test_markup_in_user_text_in_a_doubt_is_escaped() -> None:
    known = replace(hostile(), total=replace(total(), confirmed=False))
    assert "\x1b" not in shown(known) + markdown(known)
    assert HOSTILE not in page(known)
    assert "<script>" not in page(known)


def paying(steps: int | None, before_ms: float, **told: Any) -> Optimized:
    known = replace(total(), pays_after=steps, before_ms=before_ms, compile_s=18.9)
    return replace(climbed(), total=known, **told)


def test_a_compilation_that_pays_late_is_noted_under_the_headline() -> None:
    said = "compiling takes 18.9 s and pays only in runs of more than 18,872 steps"
    found = paying(18_872, 4.0)
    assert doubts(found) == (said,)
    assert data(found)["doubts"][0] == said
    text = " ".join(shown(found).split())
    assert text.index(said) < text.index("× baseline")
    assert text.count("compiling takes") == 1
    assert markdown(found).index(said) < markdown(found).index("× rung before")
    assert page(found).index(said) < page(found).index("× rung before")


@pytest.mark.parametrize(
    ("steps", "before_ms", "late"),
    [(2_001, 1.0, True), (2_000, 1.0, False), (301, 1000.0, True), (300, 1000.0, False),
     (None, 1000.0, False), (500, float("nan"), False)],
)  # fmt: skip
def test_late_is_two_thousand_steps_or_five_minutes(
    steps: int | None, before_ms: float, late: bool
) -> None:
    assert bool(doubts(paying(steps, before_ms))) == late
    # What saves memory does so from the first step.
    assert doubts(paying(steps, before_ms, measured="peak memory")) == ()


def controlled(value: float, low: float, high: float) -> Optimized:
    return replace(climbed(), control=Ratio(value=value, ci_low=low, ci_high=high, pairs=2))


def test_a_control_that_differs_puts_every_ratio_in_doubt() -> None:
    found = controlled(1.32, 1.01, 1.72)
    said = (
        "the baseline differed from itself, 1.32 × [1.01, 1.72]: the machine was "
        "disturbed, and ratios of this size prove little"
    )
    assert doubts(found) == (said,)
    assert said in data(found)["doubts"]
    assert said in " ".join(shown(found).split())
    assert said in markdown(found).replace("\\", "")
    assert said in page(found)
    assert doubts(controlled(0.8, 0.7, 0.9)) != ()


def test_a_control_around_1_or_next_to_it_is_no_doubt() -> None:
    assert doubts(controlled(1.42, 0.72, 2.82)) == ()
    assert doubts(controlled(1.003, 1.001, 1.005)) == ()
    assert doubts(replace(climbed(), control=None)) == ()


def test_a_gain_above_its_bound_is_printed_with_both_numbers() -> None:
    found = climbed()
    first = next(one for one in found.rungs if one.ratio is not None)
    wrong = replace(first, bound=1.73, bound_exceeded=True)
    told = replace(found, rungs=tuple(wrong if one is first else one for one in found.rungs))
    (said,) = set(doubts(told)) - set(doubts(found))
    assert first.title in said
    assert "1.73 ×" in said
    rows = [row for row in data(told)["ladder"] if row["bound_exceeded"]]
    assert [row["bound"] for row in rows] == [1.73]
