"""What no finding accounts for of a step that mostly waits."""

from msgspec.structs import replace

from ridgeline.diagnosis.shares import Kind, Shares
from tests.unit.diagnosis.test_findings import case, drawn, says


def test_a_wait_that_a_finding_explains_is_not_unexplained() -> None:
    starved = case(input_=0.6, overhead=0.1, busy=0.3)
    assert "waiting for data 60 %" in drawn([], starved).unexplained
    assert drawn([says("loader", 0.58, "input")], starved).unexplained == ""


def test_what_is_left_is_said_with_its_own_kind() -> None:
    both = case(input_=0.45, overhead=0.3, busy=0.25)
    said = drawn([says("loader", 0.45, "input")], both).unexplained
    assert said.startswith("30 % of the step is neither work nor explained by a finding: Python")
    assert "waiting for data" not in said
    assert drawn([says("loader", 0.45, "input"), says("loop", 0.25, "overhead")], both
                 ).unexplained == ""  # fmt: skip


def test_findings_of_work_below_3_percent_or_of_the_same_time_explain_nothing() -> None:
    waits = case(overhead=0.6, busy=0.4)
    plain = drawn([], waits).unexplained
    assert plain.startswith("60 % of the step is not the model's work, and no rule explains it")
    assert drawn([says("tf32", 0.3)], waits).unexplained == plain
    assert drawn([says("copy", 0.02, "overhead")], waits).unexplained == plain
    twice = [says("item", 0.3, "input"), says("loop", 0.3, "input")]  # there is no input
    assert drawn(twice, waits).findings[1].shares_with == "item"
    assert "60 %" in drawn(twice, waits).unexplained


def test_a_wait_of_the_host_may_hold_copies() -> None:
    of: dict[Kind, float] = {"input": 0.0, "transfer": 0.3, "overhead": 0.1, "communication": 0.0,
                             "compute": 0.6, "memory": 0.0}  # fmt: skip
    copies = replace(case(), shares=Shares(of=of))
    assert "copies between host and device" in drawn([], copies).unexplained
    assert drawn([says("item", 0.4, "overhead")], copies).unexplained == ""
