"""What a person sees at the end of `ridgeline optimize`."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.cli.optimize_progress import settled
from ridgeline.records.facts import Ratio, Reason, because
from ridgeline.records.ladder import Ladder
from ridgeline.records.optimized import Optimized, SearchCode
from ridgeline.records.trial import TrialFailure
from ridgeline.report.document import Row, Span
from ridgeline.report.views.optimized import document, method
from ridgeline.report.views.optimized_phrases import headline as headline_of
from tests.unit.report.made_up_optimized import (
    ALL,
    HOSTILE,
    NOT_TRIED,
    climbed,
    hostile,
    less_memory,
    measured,
    nothing_kept,
    parity,
    ratio,
    rung,
    total,
    unconfirmed,
    with_batch,
)
from tests.unit.report.rendered import at_terminal, tables


def shown(found: Optimized, width: int = 140) -> str:
    return at_terminal(document(found), width).lstrip("\n")


def headline(found: Optimized) -> Span:
    return Span(*headline_of(Ladder(found)))


def rows(found: Optimized) -> list[Row]:
    """Return the rows of the ladder."""
    return list(tables(document(found))[0].rows)


def cell(found: Optimized, row: Row, column: str) -> str:
    names = [one.name for one in tables(document(found))[0].columns]
    return row.cells[names.index(column)].text


def test_the_answer_comes_first_with_its_interval() -> None:
    first, *_ = shown(climbed()).splitlines()
    assert first.startswith(" 6.73 × [6.61, 6.85] as fast: 152 ms → 22.6 ms a step  ")


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ("peak memory", "Uses 0.61 × [0.59, 0.63] the memory: 8 GiB → 5 GiB, 152 ms → 22.6 ms"),
        ("energy a sample", "Uses 0.61 × [0.59, 0.63] the energy: 210 → 1,416 samples/s"),
        ("time a sample", "1.64 × [1.59, 1.69] the throughput: 210 → 1,416 samples/s"),
    ],
)
def test_the_headline_names_the_measured_quantity(measured: str, expected: str) -> None:
    known = Ratio(value=1.64, ci_low=1.59, ci_high=1.69, pairs=4)
    found = replace(climbed(), measured=measured, total=replace(total(), ratio=known))
    assert headline(found).text.startswith(expected)


def test_no_gain_is_claimed_that_was_not_proven() -> None:
    other = replace(climbed(), total=replace(total(), parity=parity("differs", 0.4)))
    assert headline(other).text.startswith("Not proven: results differ")
    assert headline(other).tone == "bad"
    slow = replace(climbed(), total=replace(total(), ratio=ratio(1.01, 0.05)))
    assert headline(slow).text.startswith("Not confirmed, and it may be no gain at all: ")
    assert "confirmed in fresh processes" not in shown(slow)
    unsure = replace(climbed(), total=replace(total(), confirmed=False))
    assert headline(unsure).tone == "unsure"
    assert headline(unsure).text.startswith("Not confirmed, though likely: 6.73 × ")
    batch = replace(with_batch(), with_batch=replace(total(), confirmed=False))
    assert "not confirmed" in " ".join(shown(batch).split())
    assert "not confirmed" not in " ".join(shown(with_batch()).split())
    assert headline(unconfirmed()).text == (
        "Kept, but not confirmed: 6.77 × as fast so far, 22.4 ms a step by then"
    )
    assert headline(nothing_kept()).text == (
        "Nothing to keep: 4 fixes tried, none proven faster and equal"
    )
    assert headline(Optimized(command="a.py", stopped=because(SearchCode.INTERRUPTED))).text == (
        "No fix was tried to its end: interrupted"
    )


def test_a_headline_without_a_gain_names_the_row_that_shows_one() -> None:
    unknown = rung(
        "compile", "torch.compile", "rejected", "not proven better: 6.55 × [0.13, 330.00]",
        ratio=Ratio(value=6.55, ci_low=0.13, ci_high=330.0, pairs=1), step_ms=20.0,
    )  # fmt: skip
    small = replace(unknown, fix="tf32", title="TF32", ratio=ratio(1.05))
    found = headline(replace(nothing_kept(), rungs=(*nothing_kept().rungs, small, unknown)))
    assert found.tone == "unsure"
    assert "torch.compile" in found.text
    assert "6.55 ×" in found.text
    assert headline(replace(nothing_kept(), rungs=(small,))).tone == "plain"
    apart = replace(unknown, status="kept", alters="semantics", ratio=ratio(6.55))
    only_apart = headline(replace(nothing_kept(), rungs=(apart,)))
    assert only_apart.tone == "unsure"
    assert "6.55 ×" in only_apart.text


def test_rows_are_in_the_order_tried_between_the_baseline_and_the_whole() -> None:
    found = climbed()
    made = rows(found)
    titles = [row.cells[0].text for row in made]
    assert (titles[0], titles[1], titles[-1]) == (
        "baseline", "A/A control", "confirmed in fresh processes"
    )  # fmt: skip
    assert len(made) == 2 + 8 + 1
    kept = [row for row in made if cell(found, row, "kept") == "✓"]
    assert [cell(found, row, "× baseline") for row in kept] == ["2.48 ×", "3.16 ×", "6.77 ×"]
    assert cell(found, made[2], "results") == "identical"
    assert cell(found, made[-1], "results") == "equal to rounding"
    assert made[3].note == "dropped: bfloat16 autocast is better"
    assert made[5].note == "not proven better after 4 pairs"
    assert made[6].note == "worse"


def test_a_control_that_was_not_measured_has_no_row() -> None:
    assert "A/A" not in shown(replace(climbed(), control=None))


@pytest.mark.parametrize("name", [name for name in ALL if name != "hostile"])
@pytest.mark.parametrize("width", [50, 80, 118, 140])
def test_no_line_is_wider_than_the_terminal_or_ends_in_blanks(name: str, width: int) -> None:
    commands = ("do it again", "continue", "check it", "see where", "with more", "on a quiet")
    for line in shown(ALL[name](), width).splitlines():
        assert len(line) <= width or line.strip().startswith(commands), line
        assert line == line.rstrip()


@pytest.mark.parametrize("width", [80, 140])
def test_nothing_is_lost_in_a_narrow_terminal(width: int) -> None:
    said = " ".join(shown(climbed(), width).split())
    for words in ("1,902 steps", "equal to rounding", "6.77 ×", "2.14 × [2.11, 2.17]", "8 GiB"):
        assert words in said
    assert "not proven better" in said


def test_another_batch_size_is_clearly_another_training() -> None:
    text = shown(with_batch())
    table, _, rest = text.partition("Not the same training")
    assert "a larger batch (batch 128)" in rest
    assert "larger batch" not in table
    assert "10.2 × [10.0, 10.4] the throughput  210 → 2,148 samples/s" in rest


def test_what_was_allowed_by_name_is_said_to_be_in_the_totals() -> None:
    whole = with_batch().with_batch
    assert whole is not None
    allowed = replace(with_batch(), total=whole, with_batch=None)
    assert "Not the same training" not in shown(allowed)
    assert "Allowed by name" in shown(allowed)


def test_the_leave_one_out_table_is_shown_if_it_was_measured() -> None:
    text = shown(climbed())
    assert "all kept fixes against all but this one." in text
    assert text.index("3.10 × [3.05, 3.15]") < text.index("1.31 × [1.29, 1.33]")
    assert "Leave-one-out" not in shown(less_memory())


def test_written_files_and_remaining_edits_are_listed() -> None:
    text = shown(climbed())
    assert "optimized_train.py · optimized_train.diff" in text
    assert "the copy by itself takes 22.7 ms a step, 6.71 ×" in text
    assert "\n       self.net = torch.compile(self.net)\n" in text
    assert "train.py:63: .item() waits" in text
    written = climbed().written
    assert written is not None
    wrong = replace(climbed(), written=replace(written, checked="it is not", agrees=False))
    assert "warning: it is not" in shown(wrong)
    unrun = replace(climbed(), written=replace(written, checked="", agrees=None))
    assert "the copy was not run on its own" in shown(unrun)


def test_markup_in_user_text_is_printed_as_text() -> None:
    for width in (80, 140):
        text = shown(hostile(), width)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "[bold]x[/bold]" in text
    assert "\\x1b" in shown(hostile())


def test_partners_of_fixes_tried_together_are_named() -> None:
    one = rung("a", "A", "rejected", "slower: 0.90 × [0.89, 0.91]", together=("b",),
               ratio=ratio(0.9))  # fmt: skip
    assert "with b: slower" in shown(replace(climbed(), rungs=(one,)))


def test_an_empty_outcome_is_shown() -> None:
    assert "Nothing was measured" in shown(Optimized(command=""))
    assert HOSTILE not in shown(Optimized(command=HOSTILE))


def test_a_fix_that_lost_its_first_pair_is_not_called_worse() -> None:
    once = Ratio(value=0.67, ci_low=0.17, ci_high=2.69, pairs=1)
    twice = Ratio(value=0.9, ci_low=0.85, ci_high=0.95, pairs=2)
    rungs = (
        rung("a", "A", "rejected", measured(SearchCode.SLOWER, once), ratio=once),
        rung("b", "B", "rejected", measured(SearchCode.SLOWER, twice), ratio=twice),
    )
    found = replace(climbed(), rungs=rungs, total=None)
    assert [row.note for row in rows(found)[2:]] == [
        "worse in its first pair, and not tried again",
        "worse",
    ]


def test_an_interval_above_1_from_too_few_pairs_is_called_not_proven() -> None:
    close = Ratio(value=1.89, ci_low=1.19, ci_high=2.99, pairs=3)
    told = rung("a", "A", "rejected", measured(SearchCode.UNDECIDED, close), ratio=close)
    assert rows(replace(climbed(), rungs=(told,), total=None))[-1].note == (
        "probably better, not proven: 3 pairs are not enough"
    )
    assert settled(told) == (
        "✗ A: rejected, probably better, not proven: 3 pairs are not enough: 1.89 × [1.19, 2.99]"
    )


def test_only_rungs_of_the_ladder_have_a_cumulative_ratio() -> None:
    left = rung("a", "A", "rejected", "no difference", ratio=ratio(1.01), step_ms=20.0)
    found = replace(climbed(), rungs=(left, *climbed().rungs))
    by_title = {row.cells[0].text: cell(found, row, "× baseline") for row in rows(found)}
    assert by_title["A"] == ""
    assert by_title["TF32 in float32 products"].endswith("×")


def test_a_step_function_mentions_neither_fresh_processes_nor_a_report() -> None:
    found = replace(climbed(), form="function", written=None)
    seen = shown(found) + "".join(method(found))
    assert "process of its own" not in seen
    assert "fresh processes" not in seen
    assert "in the report" not in seen
    assert "confirmed in new trials" in seen


def test_a_partner_is_called_by_its_title() -> None:
    alone = rung("sdpa", "fused attention", "rejected", "no difference", ratio=ratio(1.0))
    both = rung("c", "C", "rejected", "no gain", ratio=ratio(1.0), together=("sdpa",))
    told = rows(replace(climbed(), rungs=(alone, both), total=None))[-1]
    assert told.note == "with fused attention: no gain"


def test_a_search_without_applicable_fixes_is_not_called_interrupted() -> None:
    ruled_out = tuple(one for one in NOT_TRIED if one.reason.code != SearchCode.OUT_OF_TIME)
    found = Optimized(command="train.py", baseline_ms=3.0, rungs=ruled_out)
    assert headline(found).text.startswith("Nothing to try: ")


def ruled_out(*whys: Reason, **told: Any) -> str:
    rungs = tuple(rung(str(at), str(at), "not tried", why) for at, why in enumerate(whys))
    return headline(Optimized(command="train.py", baseline_ms=3.0, rungs=rungs, **told)).text


def test_fixes_excluded_by_keep_exact_alone_are_not_called_useless() -> None:
    rounding, semantics = (
        because(SearchCode.NOT_EXACT, alters=what) for what in ("rounding", "semantics")
    )
    other = because(TrialFailure.RAISED, error="a CPU has no TF32")
    assert ruled_out(rounding, other, rounding, semantics) == (
        "Nothing exact to try: 2 fixes alter rounding; leave --keep-exact out to try them"
    )
    assert ruled_out(rounding, form="function") == (
        "Nothing exact to try: 1 fix alters rounding; leave keep_exact out to try it"
    )
    assert ruled_out(semantics).endswith("leave --keep-exact out and allow it to try it")
    assert ruled_out(other).startswith("Nothing to try: no fix can win here")


def test_without_a_gain_the_diagnosis_is_under_the_headline() -> None:
    told = "input-bound: 71 % of a step waits for a batch"
    found = replace(nothing_kept(), diagnosis=told)
    assert f"\n diagnosis  {told}\n" in shown(found)
    assert "diagnosis" not in shown(replace(climbed(), diagnosis=told))
    assert f"\n was        {told}\n" in shown(replace(climbed(), diagnosis=told))
    now = shown(replace(climbed(), diagnosis=told, afterwards="compute-bound"))
    assert f"\n was        {told}\n is now     compute-bound\n" in now
    odd = shown(replace(found, diagnosis=HOSTILE), 80)
    assert "\x1b" not in odd
    assert "[bold]x[/bold]" in odd
