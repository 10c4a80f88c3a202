"""What a program reads of a comparison."""

from math import inf, nan

import msgspec
import pytest
from msgspec.structs import replace

from ridgeline.records.comparison import Skipped
from ridgeline.report.reasons import explain
from ridgeline.report.renderers import json as renderer
from ridgeline.report.views.comparison import data
from ridgeline.report.views.pair_folder import folder_data
from tests.unit.report.made_up_comparison import (
    candidate,
    comparison,
    estimate,
    folder,
    results,
    saving_memory,
    variant,
    with_names,
)


def test_one_candidates_answer_stands_at_the_top() -> None:
    d = data(comparison())
    assert (d["verdict"], d["ratio"], d["ci_low"], d["ci_high"]) == ("FASTER", 1.31, 1.27, 1.35)
    assert d["summary"] == "FASTER 1.31 × [1.27, 1.35]"
    assert d["why"] == explain(comparison().candidates[0].reason)
    assert d["results"]["status"] == "equal"
    assert d["results"]["strength"] == "strong"
    assert d["guards"][0] == {"name": "cached replay", "outcome": "passed", "detail": ""}
    assert d["level"] == 0.983


def test_the_control_is_a_row_with_its_floor() -> None:
    control = data(comparison())["control"]
    assert (control["ratio"], control["ci_low"], control["ci_high"]) == (1.001, 0.993, 1.009)
    assert (control["floor"], control["differs"], control["level"]) == (0.008, False, 0.983)


def test_several_candidates_have_an_entry_each_and_no_common_verdict() -> None:
    d = data(comparison(candidate("a"), candidate("b", "SLOWER", estimate(0.8, 0.7, 0.9))))
    assert "verdict" not in d
    assert [(k["name"], k["verdict"]) for k in d["candidates"]] == [
        ("a", "FASTER"),
        ("b", "SLOWER"),
    ]
    assert list(d["samples"]) == ["baseline", "a", "b"]


def test_samples_are_all_there_in_nanoseconds() -> None:
    found = data(comparison())["samples"]["fast.py:step"]
    assert found["count"] == len(found["values"]) == 60
    assert found["unit"] == "ns"
    assert found["values"][0] == 9.4e6


@pytest.mark.parametrize("name", ["baseline", "fast"])
def test_candidates_of_one_name_keep_their_own_samples(name: str) -> None:
    d = data(comparison(candidate(name), candidate(name)))
    assert len(d["samples"]) == 3


def test_figures_are_in_the_unit_of_their_name() -> None:
    slow_start = candidate(of_variant={"first_call_ns": 39e9, "peak_bytes": 1024, "items": 4.0})
    found = data(comparison(slow_start))["candidates"][0]
    assert found["median_ms"] == 9.4
    assert found["first_call_ms"] == 39_000
    assert found["peak_bytes"] == 1024
    assert found["items_per_second"] == pytest.approx(4 / 9.4e-3)


def test_what_is_not_a_number_is_null_in_json() -> None:
    hollow = candidate(figure=estimate(nan, 0.0, inf), results=results(worst_error=inf))
    c = comparison(hollow, baseline=variant("slow", samples_ns=(1.0, nan)))
    text = renderer.render(data(c))
    d = msgspec.json.decode(text)
    assert d["ratio"] is None
    assert d["ci_high"] is None
    assert d["results"]["worst_error"] is None
    assert d["samples"]["baseline"]["values"] == [1.0, None]
    assert "NaN" not in text
    assert "Infinity" not in text


def test_the_document_has_every_setting_made_in_advance() -> None:
    d = data(comparison())
    told = {
        key: d[key] for key in ("goal", "threshold", "alpha", "rounds", "mode", "unit", "cache")
    }
    assert told == {
        "goal": "speed", "threshold": 0.02, "alpha": 0.05, "rounds": 60, "mode": "one process",
        "unit": "call", "cache": "warm",
    }  # fmt: skip
    assert d["looks"] == [30, 60, 120, 240]
    assert (d["budget_s"], d["spent_s"], d["stopped"], d["seed"]) == (60.0, 15.2, "decided", 7)
    assert d["order_effect"]["significant"] is False
    assert d["surroundings"]["versions"] == {"torch": "2.13.0"}


def test_a_candidate_that_broke_is_named() -> None:
    broken = Skipped(name="bad", status="BROKEN", reason="it raised", hint="")
    assert data(comparison(broken=(broken,)))["broken"] == [
        {"name": "bad", "status": "BROKEN", "reason": "it raised", "hint": ""}
    ]


def test_a_comparison_without_samples_has_a_document() -> None:
    empty = candidate(of_variant={"samples_ns": ()})
    assert data(comparison(empty))["samples"]["fast.py:step"]["values"] == []


def test_a_folder_has_an_entry_for_every_pair() -> None:
    d = folder_data(folder())
    by_name = {p["name"]: p for p in d["pairs"]}
    assert by_name["attention"]["status"] == "MEASURED"
    assert by_name["attention"]["verdict"] == "FASTER"
    assert by_name["attention"]["comparison"]["rounds"] == 60
    assert by_name["precision"]["status"] == "SKIP"
    assert by_name["precision"]["verdict"] is None
    assert by_name["precision"]["hint"] == "run it on one"
    assert by_name["dataloader"]["reason"] == "workload() raised ValueError: no such folder"
    assert {frozenset(p) for p in d["pairs"]} == {frozenset(d["pairs"][0])}


def test_a_folder_counts_verdicts_and_goals() -> None:
    counts = folder_data(folder())["counts"]
    assert counts == {
        "pairs": 7, "MEASURED": 5, "SKIP": 1, "BROKEN": 1, "FASTER": 2, "SLOWER": 1, "SAME": 0,
        "UNDECIDED": 1, "INVALID": 1, "goals_met": 3,
    }  # fmt: skip


def test_an_interrupted_folder_says_so() -> None:
    d = folder_data(replace(folder(), interrupted=True, found=10))
    assert (d["interrupted"], d["found"]) == (True, 10)


def test_a_memory_win_keeps_both_its_numbers() -> None:
    d = data(saving_memory())
    assert d["verdict"] == "SLOWER"
    assert d["goal_met"] is True
    assert d["candidates"][0]["memory_ratio"] == 3.238
    assert d["summary"].startswith("LESS MEMORY 3.2 ×")


def test_hostile_names_survive_a_round_trip() -> None:
    name = '[bold]"|</script>\n\\'
    d = msgspec.json.decode(msgspec.json.encode(data(with_names(name))))
    assert d["candidates"][0]["name"] == name
    assert name in d["samples"]
