"""What a person sees at the terminal after a comparison."""

from math import nan

import pytest
from msgspec.structs import replace

from ridgeline.records.comparison import (
    Comparison,
    Control,
    Drift,
    Guard,
    OrderEffect,
    Outliers,
    PairFolder,
    Skipped,
    VerdictCode,
)
from ridgeline.records.facts import because
from ridgeline.report.views import comparison as view
from ridgeline.report.views import pair_folder
from tests.unit.report.made_up_comparison import (
    OPEN,
    SAME,
    candidate,
    comparison,
    estimate,
    folder,
    results,
    saving_memory,
    undecided,
    variant,
    weak,
    with_names,
)
from tests.unit.report.rendered import at_terminal


def shown(c: Comparison | PairFolder, width: int = 140, typed: tuple[str, ...] = ()) -> str:
    if isinstance(c, PairFolder):
        return at_terminal(pair_folder.document(c), width).lstrip("\n")
    return at_terminal(view.document(c, typed), width).lstrip("\n")


def first(c: Comparison, width: int = 140) -> str:
    return shown(c, width).splitlines()[0].strip()


def test_the_first_line_is_the_answer() -> None:
    assert first(comparison()) == (
        "FASTER 1.31 × [1.27, 1.35]   fast.py:step against slow.py:step"
        " · results equal (float64 reference, strong)"
    )


def test_on_a_narrow_terminal_the_answer_stands_alone_in_it() -> None:
    lines = shown(comparison(), 80).splitlines()
    assert lines[0] == " FASTER 1.31 × [1.27, 1.35]"
    assert lines[1].startswith(" fast.py:step against slow.py:step · results equal")


def test_a_slower_candidate_has_the_same_form_of_answer() -> None:
    slow = candidate(verdict="SLOWER", figure=estimate(0.77, 0.75, 0.79))
    assert first(comparison(slow)).startswith("SLOWER 0.77 × [0.75, 0.79]   ")


def test_a_same_verdict_states_the_threshold() -> None:
    same = candidate(verdict="SAME", figure=estimate(1.0, 0.99, 1.01), reason=SAME)
    lines = shown(comparison(same)).splitlines()
    assert lines[0].startswith(" SAME 1.00 × [0.99, 1.01]")
    assert lines[1] == " any difference is below the 2 % that matters: 0.990 to 1.010 ×"


def test_an_undecided_verdict_gives_the_reason_and_the_remedy() -> None:
    text = shown(undecided())
    assert text.startswith(" UNDECIDED 1.02 × [0.99, 1.05]")
    assert "the interval reaches from 0.991 to 1.046; about 4 × as many rounds" in text
    assert text.endswith(
        "with 4 × the rounds:  ridgeline compare slow.py:step fast.py:step --budget 240s\n"
    )


def test_an_invalid_candidate_gets_no_number_beside_its_verdict() -> None:
    wrong = candidate(
        verdict="INVALID",
        figure=estimate(150.0, 140.0, 160.0),
        reason=because(VerdictCode.RESULTS_DIFFER, detail="worst error 0.3"),
        results=results(status="different", detail="worst error 0.3"),
    )
    lines = shown(comparison(wrong)).splitlines()
    assert lines[0].startswith(" INVALID   fast.py:step against slow.py:step")
    assert lines[1] == " results differ: worst error 0.3"
    assert "(150 [140, 160])" in "".join(lines)  # in the table, in brackets
    assert "".join(lines).count("worst error 0.3") == 1


def test_a_memory_win_is_shown_with_what_it_costs() -> None:
    assert first(saving_memory()) == (
        "LESS MEMORY 3.2 × (1.17 GiB → 370 MiB), costs 4 % speed: SLOWER 0.96 × [0.95, 0.97]"
    )


def test_more_memory_is_no_win() -> None:
    c = saving_memory()
    worse = replace(c.candidates[0], memory_ratio=0.5, goal_met=False)
    assert first(replace(c, candidates=(worse,))).startswith("MORE MEMORY 2.0 × (")


def test_memory_that_was_not_measured_is_not_zero() -> None:
    c = saving_memory()
    unknown = replace(c.candidates[0], memory_ratio=None, goal_met=None)
    assert first(replace(c, candidates=(unknown,))).startswith(
        "MEMORY NOT MEASURED, speed SLOWER 0.96 × [0.95, 0.97]"
    )


def test_throughput_shows_rates_and_the_time_of_a_call() -> None:
    wide = candidate(
        figure=estimate(1.6, 1.55, 1.65),
        median_ns=20e6,
        of_variant={"items": 64.0},
        throughput_ratio=1.6,
    )
    c = comparison(wide, goal="throughput", baseline=variant("slow.py:step", 16e6, items=32.0))
    answer = "MORE THROUGHPUT 1.60 × [1.55, 1.65] (2 k/s → 3.2 k/s), a call 16 ms → 20 ms"
    assert first(c) == answer
    assert "of time an item" in shown(c)


def test_throughput_without_items_is_reported_as_speed() -> None:
    assert first(comparison(goal="throughput")).startswith("FASTER 1.31 × [1.27, 1.35]")


def several() -> Comparison:
    return comparison(
        candidate(),
        candidate(
            "compiled.py:step",
            figure=estimate(2.1, 2.05, 2.16),
            of_variant={"first_call_ns": 39e9},
            pays="after 1,900 calls",
            pays_after=1900,
            results=weak(),
        ),
        candidate("same.py:step", "SAME", estimate(1.0, 0.99, 1.01), reason=SAME),
    )


def test_of_several_the_best_is_the_answer_and_all_are_counted() -> None:
    lines = shown(several(), 160).splitlines()
    assert lines[0].startswith(" FASTER 2.10 × [2.05, 2.16]")
    assert "the best of 3: 2 FASTER, 1 SAME" in lines[0] + lines[1]


def test_each_of_several_has_its_row_with_its_verdict() -> None:
    lines = shown(several()).splitlines()
    same = next(line for line in lines if line.startswith(" same.py:step  "))
    assert same.split()[:2] == ["same.py:step", "SAME"]
    compiled = next(line for line in lines if line.startswith(" compiled.py:step  "))
    assert compiled.split()[-7:] == ["equal,", "weak", "check", "39", "s", "1,900", "calls"]
    assert any("same.py:step SAME: any difference is below the 2 %" in line for line in lines)


def test_the_answer_says_when_no_candidate_reached_the_goal() -> None:
    one, two = (candidate(n, "SLOWER", estimate(0.8, 0.7, 0.9)) for n in ("a.py:f", "b.py:f"))
    assert first(comparison(one, two)) == "NONE OF 2 FASTER   against slow.py:step · 2 SLOWER"


def test_a_candidate_that_broke_has_a_row_and_a_reason() -> None:
    broken = Skipped(
        name="bad.py:step", status="BROKEN", reason="it raised ValueError", hint="fix it"
    )
    text = shown(comparison(broken=(broken,)))
    assert "the best of 2: 1 FASTER, 1 BROKEN" in text
    assert "bad.py:step: it raised ValueError; fix it" in text


def test_a_comparison_without_measured_candidates_is_rendered() -> None:
    broken = Skipped(name="bad.py:step", status="BROKEN", reason="it raised")
    c = replace(comparison(broken=(broken,)), candidates=())
    assert first(c) == "NOTHING COMPARED   against slow.py:step · 1 BROKEN"


def test_a_weak_check_is_called_weak_with_its_reason() -> None:
    text = shown(comparison(candidate(results=weak("the input never changes"))))
    assert "(tolerances of float32, weak)" in text
    assert "warning: weak check: the input never changes" in text
    assert "weak check" not in shown(comparison())


def test_results_that_were_not_compared_are_not_equal() -> None:
    unchecked = results(status="not compared", method="none", strength="none", detail="--no-check")
    text = shown(comparison(candidate(results=unchecked)))
    assert "results not compared" in text
    assert "warning: not checked: --no-check" in text


def test_guards_that_warned_are_named_and_those_not_looked_for_too() -> None:
    guards = (
        Guard(name="lazy outputs", outcome="warned", detail="a view"),
        Guard(name="cached replay", outcome="passed"),
        Guard(name="roofline floor", outcome="not looked for"),
    )
    text = shown(comparison(candidate(guards=guards)))
    assert "warning: lazy outputs: a view" in text
    assert "1 passed; not looked for: roofline floor" in text


def test_drift_and_order_are_noted_only_when_significant() -> None:
    quiet = shown(comparison())
    assert "drift" not in quiet
    assert "order" not in quiet
    loud = shown(
        comparison(
            drift=Drift(share=0.12, significant=True),
            order=OrderEffect(share=0.05, significant=True, where="fast after slow"),
        )
    )
    assert "the baseline got 12 % slower from the first round to the last" in loud
    assert "changed times by up to 5 % (fast after slow)" in loud
    assert "--isolate" in loud.splitlines()[-1]


def test_isolation_is_not_advised_to_an_isolated_comparison() -> None:
    order = OrderEffect(share=0.05, significant=True)
    assert "--isolate" not in shown(comparison(order=order, mode="isolated processes"))


def test_a_control_that_differs_is_the_first_note() -> None:
    control = Control(estimate=estimate(1.05, 1.02, 1.08), floor=0.03, differs=True)
    text = shown(undecided(control=control))
    assert "identical code measured different: A/A 1.05 × [1.02, 1.08]" in text
    assert text.index("measured different") < text.index("worst error")


def test_outliers_discarded_rounds_and_compilations_are_counted() -> None:
    odd = candidate(
        of_variant={
            "outliers": Outliers(mild_high=2, severe_high=1),
            "discarded": 4,
            "recompiles": 2,
            "steady": False,
            "warmup_calls": 40,
        }
    )
    text = shown(comparison(odd))
    assert "fast.py:step 3 of 60, 1 severe" in text
    assert "4 rounds discarded, because the device was throttled" in text
    assert "fast.py:step: 2 compilations during the rounds" in text
    assert "fast.py:step had not reached a steady state after 40 calls" in text


def test_looks_and_confidence_level_are_noted() -> None:
    text = shown(comparison())
    assert "60 rounds of 240, stopped when the verdict was clear at look 2 of 4; 15 s of" in text
    assert "bootstrap over 60 rounds, at 98.3 % each: 95 % over all looks" in text


def test_processor_time_is_noted_where_it_contradicts_wall_time() -> None:
    assert "processor time" not in shown(comparison(candidate(cpu_ratio=1.2)))
    text = shown(comparison(candidate(cpu_ratio=0.6)))
    assert "faster by wall time, but with more processor time (0.60 ×)" in text


def test_the_advised_number_of_rounds_is_that_of_the_verdict() -> None:
    def missing(factor: int) -> Comparison:
        c = undecided()
        reason = replace(OPEN, facts={**OPEN.facts, "rounds_factor": factor})
        return replace(c, candidates=(replace(c.candidates[0], reason=reason),))

    assert "--budget 540s" in shown(missing(9))
    assert "no number of rounds worth running" in shown(missing(0))
    assert "--budget" not in shown(missing(0))


def test_the_advised_budget_has_start_and_checks_once() -> None:
    assert "--budget 62s" in shown(replace(undecided(), spent_s=60.0, rounds_s=0.5))
    assert "--budget 150s" in shown(replace(undecided(), spent_s=60.0, rounds_s=30.0))


def test_the_next_command_is_what_was_typed_and_one_option_more() -> None:
    typed = ("compare", "base.py", "head.py", "--budget", "60s", "--cold", "--", "--epochs", "1")
    last = shown(undecided(), typed=typed).splitlines()[-1]
    assert last.endswith("ridgeline compare base.py head.py --cold --budget 240s -- --epochs 1")


def test_names_that_are_no_targets_get_the_argument_of_the_python_call() -> None:
    c = replace(undecided(), baseline=variant("a"))
    assert shown(c).endswith("with 4 × the rounds:  budget=240\n")


def test_no_samples_and_no_numbers_still_print() -> None:
    empty = variant("slow.py:step", 1.0, samples_ns=())
    empty = replace(empty, summary=replace(empty.summary, count=0, median_ns=nan))
    hollow = candidate(verdict="UNDECIDED", figure=estimate(nan, nan, nan), guards=())
    text = shown(comparison(replace(hollow, variant=empty), baseline=empty))
    assert text.startswith(" UNDECIDED —")
    assert "nan" not in text


@pytest.mark.parametrize("name", ["[bold]x[/bold]", "a|b", "<script>", "[/]"])
def test_markup_in_names_is_shown_as_written(name: str) -> None:
    text = shown(with_names(name), 200)
    assert f"{name} against base {name}" in text
    assert f"results differ: why {name}" in text
    assert f"weak check: weak {name}" in text


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize(
    "found", [comparison(), undecided(), saving_memory(), several(), folder()], ids=lambda _: ""
)
def test_nothing_but_a_command_is_wider_than_the_terminal(
    found: Comparison | PairFolder, width: int
) -> None:
    lines = [line for line in shown(found, width).splitlines() if "ridgeline compare" not in line]
    assert max(map(len, lines)) <= width


def test_a_folder_is_its_count_and_one_table() -> None:
    lines = shown(folder(), 200).splitlines()
    rows = {line.split()[0]: line for line in lines[3:10]}
    assert "FASTER" in rows["attention"]
    assert "1.31 [1.27, 1.35]" in rows["attention"]
    assert "LESS MEMORY" in rows["checkpointing"]
    assert "1.17 GiB → 370 MiB" in rows["checkpointing"]
    assert "39 s" in rows["regional_compile"]
    assert "1,900 calls" in rows["regional_compile"]
    assert "fp8 needs a GPU of Hopper or later; run it on one" in rows["precision"]
    assert "workload() raised ValueError: no such folder" in rows["dataloader"]
    assert lines[0].strip() == (
        "7 pairs in examples/pairs:"
        " 2 FASTER, 1 UNDECIDED, 1 INVALID, 1 LESS MEMORY, 1 SKIP, 1 BROKEN"
    )


def test_on_a_narrow_terminal_reasons_stand_under_the_table() -> None:
    lines = shown(folder(), 80).splitlines()
    assert any(line.split() == ["precision", "SKIP"] for line in lines)
    (row,) = [i for i, line in enumerate(lines) if line.split() == ["precision", "SKIP"]]
    assert "Hopper" in lines[row + 1]


def test_costs_move_to_a_table_of_their_own_together() -> None:
    headers = [x.split() for x in shown(folder(), 110).splitlines() if x.startswith(" pair ")]
    assert headers == [
        ["pair", "verdict", "×", "baseline", "results"],
        ["pair", "memory", "first", "call", "pays", "after"],
    ]


def test_an_interrupted_folder_says_how_far_it_came() -> None:
    f = replace(folder(), interrupted=True, found=10)
    assert "interrupted after 7 of 10 pairs in examples/pairs" in shown(f)


def test_an_empty_folder_prints_its_name() -> None:
    assert shown(PairFolder(folder="none", pairs=())).strip() == "0 pairs in none"
