"""What the rules say, ranked: by exposed time and how sure it is, no time counted twice."""

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case, Need
from ridgeline.diagnosis.findings import findings
from ridgeline.diagnosis.recorded_run import Attempts
from ridgeline.diagnosis.rule import Budget, Registered, Rule, make_finding
from ridgeline.diagnosis.shares import Kind, Shares
from ridgeline.records.finding import Confidence, Evidence, Finding, Findings, UnaskedRule
from ridgeline.records.run import Capture, LoaderSeen, OutOfMemory
from ridgeline.records.run_summary import MemoryUse
from ridgeline.records.trace import Place
from tests.unit.diagnosis import made_up_verdict as made

GIB = 2**30


def case(
    *, input_: float = 0.0, overhead: float = 0.2, busy: float = 0.7, workers: int = 0,
    memory: MemoryUse | None = None, capture: Capture | None = None,
) -> Case:  # fmt: skip
    of = {"input": input_, "transfer": 0.0, "overhead": overhead, "communication": 0.0,
          "compute": busy, "memory": 0.0}  # fmt: skip
    return Case(
        on_gpu=True,
        times=made.times({"forward": 1.0}),
        work=made.work(busy),
        study=made.study({"input": 0.1}),
        shares=Shares(of=of),
        memory=memory or MemoryUse(),
        capture=capture or Capture(loaders=(LoaderSeen(workers=workers, batches=9),)),
    )


def rule(name: str, budget: Budget = "work", *, needs: tuple[Need, ...] = ()) -> Rule:
    return Rule(id=name, family="kernels", budget=budget, needs=needs)


def says(
    name: str, share: float, budget: Budget = "work", *, confidence: Confidence = "high",
    memory: float = 0.0, needs: tuple[Need, ...] = (),
) -> Registered:  # fmt: skip
    asked = rule(name, budget, needs=needs)

    def look(case: Case) -> Iterator[Finding]:
        yield make_finding(asked, claim=name, share=share, confidence=confidence, memory=memory)

    return Registered(asked, look)


def drawn(rules: list[Registered], of: Case | None = None) -> Findings:
    attempts = Attempts()
    answer = findings(of or case(), attempts, rules)
    assert attempts.failures == []
    return answer


def names(answer: Findings) -> list[str]:
    return [finding.rule for finding in answer.findings]


def test_the_largest_share_comes_first() -> None:
    assert names(drawn([says("a", 0.1), says("b", 0.4), says("c", 0.2)])) == ["b", "c", "a"]


def test_a_sure_finding_comes_before_a_larger_doubtful_one() -> None:
    rules = [says("low", 0.3, confidence="low"), says("high", 0.2), says("medium", 0.22,
             confidence="medium")]  # fmt: skip
    assert names(drawn(rules)) == ["high", "medium", "low"]


def test_equals_keep_the_same_order_whatever_the_order_of_rules() -> None:
    rules = [says("b", 0.1), says("a", 0.1), says("c", 0.1)]
    assert names(drawn(rules)) == names(drawn(rules[::-1])) == ["a", "b", "c"]


def test_what_is_below_half_a_percent_is_left_out_unless_it_was_only_read() -> None:
    rules = [says("tiny", 0.004), says("read", 0.0, confidence="unmeasured"), says("big", 0.1)]
    assert names(drawn(rules)) == ["big", "read"]


def test_memory_counts_a_tenth_of_time_where_there_is_room() -> None:
    rules = [says("time", 0.05), says("memory", 0.0, "memory", memory=0.4)]
    assert names(drawn(rules)) == ["time", "memory"]
    crowded = MemoryUse(device_reserved_bytes=90 * GIB, device_total_bytes=100 * GIB)
    assert names(drawn(rules, case(memory=crowded))) == ["memory", "time"]
    growing = MemoryUse(growth_bytes_per_step=2.0**20)
    assert names(drawn(rules, case(memory=growing))) == ["memory", "time"]
    full = Capture(out_of_memory=OutOfMemory(asked_bytes=1, free_bytes=0, total_bytes=1))
    assert names(drawn(rules, case(capture=full))) == ["memory", "time"]


def test_two_charged_with_the_same_time_are_not_added_twice() -> None:
    answer = drawn([says("a", 0.6), says("b", 0.5), says("c", 0.1, "overhead")])
    shares = {f.rule: f.shares_with for f in answer.findings}
    assert shares == {"a": "", "b": "a", "c": ""}
    # "work" holds 0.7 of the step; of "overhead" the finding may save 0.1 and its tolerance
    assert answer.gain_bound == pytest.approx(1 / (1 - 0.7 - 0.11), rel=0.01)


def test_two_that_both_fit_into_the_budget_stand_alone() -> None:
    answer = drawn([says("a", 0.4), says("b", 0.25)])
    assert [f.shares_with for f in answer.findings] == ["", ""]
    assert answer.gain_bound == pytest.approx(1 / (1 - 0.44 - 0.275 + 0.015), rel=0.01)


def test_the_cause_of_out_of_memory_comes_before_findings_about_speed() -> None:
    rules = [says("fast", 0.85), says("leak", 0.0, "memory", memory=0.9, confidence="medium")]
    assert names(drawn(rules)) == ["fast", "leak"]
    full = Capture(out_of_memory=OutOfMemory(asked_bytes=1, free_bytes=0, total_bytes=1))
    assert names(drawn(rules, case(capture=full))) == ["leak", "fast"]


def test_memory_alone_shares_nobodys_time() -> None:
    answer = drawn([says("a", 0.7), says("b", 0.0, "memory", memory=0.5)])
    assert [f.shares_with for f in answer.findings] == ["", ""]


def test_without_shares_nothing_is_known_to_overlap() -> None:
    answer = drawn([says("a", 0.6), says("b", 0.5)], replace(case(), shares=None))
    # two of 60 and 50 % cannot both be gone: the whole step is the budget
    assert [f.shares_with for f in answer.findings] == ["", ""]


def test_behind_a_loader_with_workers_the_devices_work_comes_after() -> None:
    rules = [says("feed", 0.4, "input"), says("slow", 0.3), says("launch", 0.1, "overhead"),
             says("held", 0.0, "memory", memory=0.5)]  # fmt: skip
    waiting = case(input_=0.5, busy=0.4, overhead=0.1, workers=4)
    after = {f.rule: f.after for f in drawn(rules, waiting).findings}
    assert after == {"feed": "", "slow": "feed", "launch": "feed", "held": ""}


@pytest.mark.parametrize(
    "of",
    [
        case(input_=0.5, busy=0.4, overhead=0.1, workers=0),  # the waits and the work add up
        case(input_=0.1, busy=0.4, overhead=0.5, workers=4),  # it waits too little
        case(input_=0.1, busy=0.9, overhead=0.0, workers=4),  # the device is what limits
    ],
    ids=["no workers", "small wait", "saturated"],
)
def test_elsewhere_nothing_waits_for_the_loader(of: Case) -> None:
    rules = [says("feed", 0.4, "input"), says("slow", 0.3)]
    assert [f.after for f in drawn(rules, of).findings] == ["", ""]


def test_nothing_comes_after_a_loader_no_rule_blames() -> None:
    waiting = case(input_=0.5, busy=0.4, overhead=0.1, workers=4)
    assert [f.after for f in drawn([says("slow", 0.3)], waiting).findings] == [""]


def test_a_rule_is_not_asked_without_what_it_needs() -> None:
    answer = drawn([says("a", 0.1, needs=("telemetry", "ranks")), says("b", 0.1, needs=("trace",))])
    assert names(answer) == ["b"]
    assert answer.unlooked == (UnaskedRule("a", ("telemetry", "ranks")),)


def test_a_rule_that_fails_is_said_and_costs_itself_only() -> None:
    def look(case: Case) -> Iterator[Finding]:
        yield make_finding(rule("bad"), claim="half", share=0.3)
        raise ValueError("no such thing")

    attempts = Attempts()
    answer = findings(case(), attempts, [Registered(rule("bad"), look), says("good", 0.1)])
    assert names(answer) == ["good"]
    assert attempts.failures == ["the rule bad failed (ValueError: no such thing)"]


def test_what_is_kept_has_bounds() -> None:
    asked = rule("a")

    def look(case: Case) -> Iterator[Finding]:
        for _ in range(70):
            yield make_finding(asked, claim="x" * 10_000, share=0.01, change="y" * 10_000)

    answer = drawn([Registered(asked, look)])
    assert (len(answer.findings), answer.left_out) == (50, 20)
    assert len(answer.findings[0].claim) == 400
    assert answer.findings[0].change == ""


def test_a_finding_knows_its_family_bound_and_place() -> None:
    place = Place(file="train.py", line=40, function="step")
    one = make_finding(rule("a"), claim="c", share=0.5, place=place, line=44, memory=0.2)
    assert (one.gain_bound, one.share_pct, one.memory_pct) == (2.222, 50.0, 20.0)
    assert (one.place, one.id) == ("train.py:44", "a:train.py:step")
    assert drawn([says("a", 0.5)]).findings[0].family == "kernels"
    assert make_finding(rule("a"), claim="c", share=7.0).gain_bound == 200.0
    assert make_finding(rule("a"), claim="c", share=-1.0).share_pct == 0.0
    assert make_finding(rule("a"), claim="c", share=0.5, bound=1.2).gain_bound == 1.224


def test_what_remains_and_the_answers_come_with_the_findings() -> None:
    answer = drawn([])
    assert len(answer.answers) == 5
    assert answer.remains.startswith("arithmetic 70 %")


def test_all_of_them_together_bound_the_gain() -> None:
    assert drawn([]).gain_bound == 1.0
    both = drawn([says("a", 0.5), says("b", 0.2, "overhead")])
    assert both.gain_bound == pytest.approx(1 / (1 - 0.55 - 0.22), rel=0.01)


def test_a_set_may_gain_more_than_the_product_of_its_parts() -> None:
    """Half of the work and a fifth of launches: 2 × 1.25 is 2.5, and without both the step is 3.3
    times as short."""
    both = drawn([says("a", 0.5), says("b", 0.2, "overhead")])
    assert both.gain_bound >= 1 / (1 - 0.5 - 0.2) > 2 * 1.25


def test_what_a_loader_hides_counts_once_the_loader_is_fixed() -> None:
    """A vision transformer waited for its loader after its kernels were fast: alone neither fix
    gains much, together 3.2 × was gained."""
    starved = case(input_=0.6, overhead=0.0, busy=0.3, workers=4)
    answer = drawn([says("a", 0.2), says("loader", 0.6, "input")], starved)
    assert [one.after for one in answer.findings] == ["", "loader"]
    assert answer.gain_bound >= 1 / (1 - 0.6 - 0.2)


def test_the_bound_of_all_is_never_below_that_of_one() -> None:
    small_room = drawn([says("a", 0.9)])  # "work" was measured as 0.7 of the step
    assert small_room.gain_bound == small_room.findings[0].gain_bound


def test_two_in_one_function_have_ids_of_their_own_in_the_order_of_lines() -> None:
    asked = rule("a")

    def look(case: Case) -> Iterator[Finding]:
        for line, share in ((9, 0.3), (4, 0.1)):
            place = Place(file="train.py", line=1, function="main")
            yield make_finding(asked, claim=str(line), share=share, place=place, line=line)

    ids = {one.claim: one.id for one in drawn([Registered(asked, look)]).findings}
    assert ids == {"4": "a:train.py:main", "9": "a:train.py:main#2"}


def test_numbers_of_numpy_become_pythons_own() -> None:
    evidence = [Evidence(what="x", text="1", value=np.float64(1.0))]
    one = make_finding(
        rule("a"), claim="", share=np.float64(0.2), evidence=evidence, bound=np.float64(2)
    )
    assert msgspec.json.decode(msgspec.json.encode(one))["gain_bound"] == 2.222


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
