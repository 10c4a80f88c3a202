"""What a comparison means for a job that must pass or fail."""

import pytest
from made_comparison import candidate, comparison, pair

from ridgeline.comparison import verdicts
from ridgeline.records.comparison import PairFolder, Skipped


@pytest.mark.parametrize(
    ("verdict", "conditions", "code"),
    [
        ("SLOWER", (), 0),
        ("SLOWER", ("slower",), 3),
        ("FASTER", ("slower",), 0),
        ("SAME", ("slower",), 0),
        ("SAME", ("not-faster",), 3),
        ("UNDECIDED", ("slower",), 0),
        ("UNDECIDED", ("slower", "undecided"), 3),
        ("INVALID", ("slower",), 3),
        ("INVALID", (), 4),
    ],
)
def test_the_exit_code_follows_verdict_and_gate(
    verdict: str, conditions: tuple[str, ...], code: int
) -> None:
    assert verdicts.exit_code(comparison(candidate(verdict)), conditions) == code


def test_a_memory_win_that_costs_speed_passes_a_gate_on_speed() -> None:
    found = comparison(candidate("SLOWER", goal_met=True), goal="memory")
    assert verdicts.exit_code(found, ("slower",)) == 0
    missed = comparison(candidate("SLOWER", goal_met=False), goal="memory")
    assert verdicts.exit_code(missed, ("slower",)) == 3


def test_a_wrong_answer_fails_the_gate_whatever_it_saved() -> None:
    found = comparison(candidate("INVALID", goal_met=False), goal="memory")
    assert verdicts.exit_code(found, ("slower",)) == 3


def test_one_broken_pair_is_told_by_the_code_and_a_skipped_one_is_not() -> None:
    good = pair("a", comparison(candidate("FASTER")))
    skip = Skipped(name="b", status="SKIP", reason="needs fp8")
    broken = Skipped(name="c", status="BROKEN", reason="raises")
    assert verdicts.exit_code(PairFolder(folder="x", pairs=(good, skip)), ()) == 0
    assert verdicts.exit_code(PairFolder(folder="x", pairs=(good, skip, broken)), ()) == 4


def test_nothing_measured_at_all_is_told() -> None:
    skip = Skipped(name="b", status="SKIP", reason="needs fp8")
    assert verdicts.exit_code(PairFolder(folder="x", pairs=(skip,)), ()) == 4


def test_a_broken_candidate_beside_a_good_one_is_told() -> None:
    broken = Skipped(name="b", status="BROKEN", reason="raises")
    assert verdicts.exit_code(comparison(candidate("FASTER"), broken=(broken,)), ()) == 4


def test_the_gate_names_who_failed_it() -> None:
    found = comparison(candidate("SLOWER", name="head.py:step"), candidate("FASTER"))
    assert verdicts.failures(found, ("slower",)) == ("head.py:step is SLOWER",)
