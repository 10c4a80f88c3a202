"""A wrong answer is not faster, it is wrong."""

import msgspec
import pytest

from ridgeline.comparison.verdicts import validity
from ridgeline.records.comparison import Guard

from made_comparison import EQUAL  # isort: skip


@pytest.mark.parametrize("verdict", ["FASTER", "SLOWER", "SAME", "UNDECIDED"])
def test_other_results_make_every_verdict_invalid(verdict: str) -> None:
    wrong = msgspec.structs.replace(EQUAL, status="different", detail="off by 1 %")
    found, why = validity(verdict, "", wrong, ())  # type: ignore[arg-type]
    assert found == "INVALID"
    assert "off by 1 %" in why


def test_a_failed_guard_makes_it_invalid_and_a_warning_does_not() -> None:
    warned = Guard(name="threads left behind", outcome="warned", detail="one")
    failed = Guard(name="cached replay", outcome="failed", detail="the answer was kept")
    assert validity("FASTER", "why", EQUAL, (warned,)) == ("FASTER", "why")
    assert validity("FASTER", "why", EQUAL, (warned, failed)) == (
        "INVALID",
        "cached replay: the answer was kept",
    )


def test_results_that_could_not_be_compared_leave_the_verdict() -> None:
    unknown = msgspec.structs.replace(EQUAL, status="not compared", strength="none")
    assert validity("FASTER", "why", unknown, ())[0] == "FASTER"
