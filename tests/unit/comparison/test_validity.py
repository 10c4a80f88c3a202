"""A wrong answer is not faster, it is wrong."""

import msgspec
import pytest

from ridgeline.comparison.verdicts import validity
from ridgeline.records.comparison import Guard, VerdictCode
from ridgeline.records.facts import because

from made_comparison import EQUAL, REASON  # isort: skip


@pytest.mark.parametrize("verdict", ["FASTER", "SLOWER", "SAME", "UNDECIDED"])
def test_other_results_make_every_verdict_invalid(verdict: str) -> None:
    wrong = msgspec.structs.replace(EQUAL, status="different", detail="off by 1 %")
    found, reason = validity(verdict, REASON, wrong, ())  # type: ignore[arg-type]
    assert found == "INVALID"
    assert reason == because(VerdictCode.RESULTS_DIFFER, detail="off by 1 %")


def test_a_failed_guard_makes_it_invalid_and_a_warning_does_not() -> None:
    warned = Guard(name="threads left behind", outcome="warned", detail="one")
    failed = Guard(name="cached replay", outcome="failed", detail="the answer was kept")
    assert validity("FASTER", REASON, EQUAL, (warned,)) == ("FASTER", REASON)
    expected = because(
        VerdictCode.GUARD_FAILED, guard="cached replay", detail="the answer was kept"
    )
    assert validity("FASTER", REASON, EQUAL, (warned, failed)) == ("INVALID", expected)


def test_results_that_could_not_be_compared_leave_the_verdict() -> None:
    unknown = msgspec.structs.replace(EQUAL, status="not compared", strength="none")
    assert validity("FASTER", REASON, unknown, ())[0] == "FASTER"
