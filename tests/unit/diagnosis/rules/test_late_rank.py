import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.communication import late_rank as look
from ridgeline.records.facts import Trust
from ridgeline.records.sites import LateRank, Sites
from ridgeline.records.trace import Activity, Place
from tests.unit.diagnosis.made_up_steps import MS
from tests.unit.diagnosis.rules.made_up_machine import only
from tests.unit.diagnosis.rules.made_up_ranks import MIB, case, rank_place, ranks, site

SOURCE = """def watch(model):
    return [float(p.norm()) for p in model.parameters()]


def main():
    for batch in loader:
        if dist.get_rank() == 0:
            watch(model)
        model(batch).backward()
"""


def test_one_rank_alone_does_more() -> None:
    cause = rank_place(0, 18, 0, "<listcomp>", 2)
    found = only(look(case(across=ranks([60, 0]), places=[cause], source=SOURCE, gpu=False)))
    assert (
        found.claim
        == "Rank 0 comes 20 ms late in each step, because of watch: the other ranks wait for it"
    )
    assert found.place == "train.py:8"
    assert found.share_pct == pytest.approx(20)
    assert found.confidence == "high"
    assert "watch(model)" in found.change
    assert any("18 ms a traced step on rank 0" in one.text for one in found.evidence)


BRANCHES = "def main():\n    work()\n    if rank == 1:\n        print_all()\n    more()\n"


def test_the_line_is_that_of_the_call_that_the_stack_shows() -> None:
    cause = replace(rank_place(1, 18, 1, "main", 1), callee="log.py(3): print_all")
    found = only(look(case(across=ranks([0, 60]), places=[cause], source=BRANCHES)))
    assert found.place == "train.py:4"


TWICE = """def largest(model):
    return max(float(svdvals(p)) for p in model.parameters())


def main():
    for batch in loader:
        if rank == 0:
            largest(model)
        model(batch).backward()
    print(largest(model))
"""


def test_the_call_that_one_rank_alone_makes_in_the_loop_is_the_line() -> None:
    cause = rank_place(0, 18, 0, "<genexpr>", 2)
    within = Place(file="train.py", line=1, function="largest")
    cause = replace(cause, callee="<built-in function svdvals>", caller=within)
    found = only(look(case(across=ranks([60, 0]), places=[cause], source=TWICE)))
    assert found.place == "train.py:8"
    assert "largest(model)" in found.change


def test_no_line_inside_a_function_is_named_that_was_not_seen_running() -> None:
    cause = rank_place(1, 18, 1, "main", 1)
    found = only(look(case(across=ranks([0, 60]), places=[cause], source=BRANCHES)))
    assert found.place == "train.py:1"
    loop = replace(cause, encloses_steps=True)
    found = only(look(case(across=ranks([0, 60]), places=[loop], source=BRANCHES)))
    assert (found.file, found.function) == ("", "")
    assert "main" not in found.claim
    assert "main" not in found.change


def test_without_a_cause_a_gpu_is_told_with_doubt() -> None:
    found = only(look(case(across=ranks([60, 0]))))
    assert found.confidence == "low"
    assert found.claim == "Rank 0 comes 20 ms late in each step: the other ranks wait for it"
    assert any("aten::mm, 100 % of that time" in one.text for one in found.evidence)
    assert "ridgeline hardware" in found.change


def test_where_the_late_rank_was_is_no_cause() -> None:
    """A quarter of its lateness is in the loader, where the others are as long; no stacks."""
    told = ranks([60, 0])
    doing = (
        Activity(side="host", name="enumerate(DataLoader)", ns=25),
        Activity(side="host", name="aten::mm", ns=20),
        Activity(name="aten::add", ns=55 - 10),
    )
    across = replace(told, ranks=(replace(told.ranks[0], doing=doing), told.ranks[1]))
    made = case(across=across, run=False)
    found = only(look(replace(made, sites=Sites(steps=1))))
    assert "DataLoader" not in found.claim
    assert "in the one step recorded" in found.claim
    assert not any("DataLoader" in one.text for one in found.evidence)
    assert "with_stack=True" in found.change
    assert "ridgeline trace" not in found.change


def test_a_function_the_others_are_in_as_long_is_no_cause() -> None:
    alike = rank_place(0, 60, 50, "load", 1)
    found = only(look(case(across=ranks([60, 0]), places=[alike], source=SOURCE)))
    assert found.file == ""
    assert "load" not in found.claim


def test_of_many_ranks_each_one_waits_its_own_time() -> None:
    found = only(look(case(across=ranks([0, 90, 0, 0]))))
    assert found.claim.startswith("Rank 1 comes 10 ms late")
    assert found.share_pct == pytest.approx(10)


def test_on_a_cpu_lateness_without_a_cause_is_the_schedulers() -> None:
    assert not [*look(case(across=ranks([60, 0]), gpu=False))]
    alike = rank_place(0, 60, 50, "main", 5)
    assert not [*look(case(across=ranks([60, 0]), places=[alike], source=SOURCE, gpu=False))]


@pytest.mark.parametrize("caused", [(60, 50), (6, 0), (0, 0)])
def test_silent_where_nobody_is_late_or_all_by_turns(caused: tuple[float, float]) -> None:
    assert not [*look(case(across=ranks(caused)))]


def test_where_clocks_differ_a_function_and_the_time_in_collectives_tell() -> None:
    doubt = Trust(confidence="unreliable", why="ends differ")
    unaligned = ranks([0, 0], trust=doubt)
    longer = replace(unaligned.ranks[1], communication_ns=120_000_000)
    across = replace(unaligned, ranks=(unaligned.ranks[0], longer))
    cause = rank_place(0, 18, 0, "<listcomp>", 2)
    found = only(look(case(across=across, places=[cause], source=SOURCE, gpu=False)))
    assert found.place == "train.py:8"
    assert found.share_pct == pytest.approx(18)
    assert not [*look(case(across=unaligned, places=[cause], source=SOURCE, gpu=False))]
    shared = rank_place(0, 18, 12, "<listcomp>", 2)
    assert not [*look(case(across=across, places=[shared], source=SOURCE, gpu=False))]


def test_silent_where_the_clocks_cannot_be_aligned() -> None:
    doubt = Trust(confidence="unreliable", why="ends differ")
    assert not [*look(case(across=ranks([60, 0], trust=doubt)))]


def test_one_trace_shows_that_somebody_is_late() -> None:
    found = only(look(case(site(30, calls=4, size=16 * 1024, function=""), run=False)))
    assert found.confidence == "low"
    assert "64 KiB" in found.claim
    assert found.share_pct == pytest.approx(29.5, abs=0.1)
    assert not [*look(case(site(30, size=100 * MIB), run=False))]


def late_in_steps(**changes: object) -> LateRank:
    made = LateRank(
        rank=1, late_ns=40 * MS, step_ns=50 * MS, slowest_other_ns=8 * MS, phase="input",
        phase_ns=41 * MS, steps=30, late_steps=30, place="train.py:5",
    )  # fmt: skip
    return replace(made, **changes)


def test_lateness_and_bound_are_parts_of_the_same_step() -> None:
    made = replace(case(gpu=False), steps_compared=True, late=late_in_steps())
    found = only(look(made))
    assert found.share_pct == pytest.approx(80)
    assert found.gain_bound == pytest.approx(with_tolerance(50 / 8), rel=0.01)
    assert found.place == "train.py:5"
    assert found.confidence == "high"


def test_arrivals_name_no_late_rank_where_steps_were_found_equal() -> None:
    cause = rank_place(0, 18, 0, "watch", 1)
    made = case(across=ranks([60, 0]), places=[cause], source=SOURCE, gpu=False)
    assert [*look(made)]
    assert not [*look(replace(made, steps_compared=True, late=None))]


def test_a_late_rank_is_late_by_less_than_its_step() -> None:
    """Traced steps of 300 ms show 200 ms; an untraced one takes 100, 10 of them the others' own."""
    told = ranks([600, 0])
    busy = tuple(replace(one, compute_ns=30 * MS) for one in told.ranks)
    found = only(look(case(across=replace(told, ranks=busy))))
    assert found.share_pct == pytest.approx(90)
    assert found.gain_bound == pytest.approx(with_tolerance(10), rel=0.1)


def test_pauses_of_the_shown_rank_are_reported_once() -> None:
    late = late_in_steps(rank=0, phase="evaluation", place="")
    made = replace(case(gpu=False), steps_compared=True, late=late)
    assert [*look(made)]
    assert not [*look(replace(made, times=replace(made.times, pause_share=0.7)))]


def test_the_bound_leaves_out_the_other_work_of_the_ranks() -> None:
    """The function takes more time than an untraced step has. The bound was once 200 ×."""
    cause = rank_place(0, 130, 0, "watch", 1)
    found = only(look(case(across=ranks([60, 0]), places=[cause], source=SOURCE)))
    assert found.gain_bound < 10
    assert found.share_pct < 90
