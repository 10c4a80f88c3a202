"""The rank the others wait for is named, with what it did in that time."""

from pathlib import Path

import pytest
from jobs_made import Rank, study, told
from traces_made import AUTOGRAD, HOST

from ridgeline.records.trace import Activity
from ridgeline.trace.ranks.late import main_activity

BACKWARD = "autograd::engine::evaluate_function: IndexBackward0"


def job(late_by: int, steps: int = 6) -> tuple[list[Rank], list[tuple[int, int]]]:
    """Four ranks; rank 2 joins each all-reduce late. Also when the others came, when it did."""
    made = [Rank(r, r * 7_000_000) for r in range(4)]
    waits = []
    for step in range(steps):
        came = 10_000 + step * 20_000
        waits.append((came, came + late_by))
        for r, rank in enumerate(made):
            start = came + (late_by if r == 2 else 0)
            rank.collective(start, came + late_by + 100, **told(step, size=4))
    return made, waits


def test_a_rank_slow_inside_backward_is_named_with_the_operator(tmp_path: Path) -> None:
    made, waits = job(late_by=3_000)
    for came, own in waits:
        for r, rank in enumerate(made):
            rank.span(f"ProfilerStep#{came}", came - 5_000, 12_000)
            rank.work("aten::mm", came - 2_000, came - 100, AUTOGRAD, "MmBackward0")
            if r == 2:
                rank.work("aten::index_put_", came - 50, own - 20, AUTOGRAD, BACKWARD)
    told_ = study(made, tmp_path)
    late = told_.ranks[2]
    assert (late.late_count, late.caused_wait_ns, late.wait_ns) == (6, 3 * 6 * 3_000_000, 0)
    assert late.doing[0] == Activity(name="aten::index_put_", phase="backward", ns=6 * 2_980_000)
    assert sum(activity.ns for activity in late.doing) == 6 * 3_000_000
    assert all(r.late_count == 0 and r.doing == () for r in told_.ranks if r.rank != 2)
    assert told_.late == (
        "rank 2 joined last in 6 of 6 collectives; the others waited 54.0 ms for it, summed over "
        "ranks, mostly while it ran aten::index_put_ in backward"
    )


def test_a_rank_late_by_its_input_is_named_with_its_loader(tmp_path: Path) -> None:
    made, waits = job(late_by=3_000)
    for came, own in waits:
        made[2].span(f"ProfilerStep#{came}", came - 5_000, 12_000)
        made[2].span("enumerate(DataLoader)#_Iter.__next__", came - 200, own - came)
        made[2].op("aten::stack", came + 100, 500)
    told_ = study(made, tmp_path)
    assert told_.ranks[2].doing[:2] == (
        Activity(side="host", name="enumerate(DataLoader)#_Iter.__next__", ns=6 * 2_300_000),
        Activity(side="host", name="aten::stack", phase="input", ns=6 * 500_000),
    )
    assert told_.late.endswith(
        "mostly while its device was idle and its host in enumerate(DataLoader)#_Iter.__next__"
    )


def test_many_small_operators_of_one_phase_are_told_by_the_phase(tmp_path: Path) -> None:
    made, waits = job(late_by=3_000)
    for came, own in waits:
        for i, at in enumerate(range(came, own - 100, 100)):
            made[2].op(BACKWARD, at, 100, AUTOGRAD)
            made[2].op(f"aten::op{i}", at, 100, AUTOGRAD)
    said = study(made, tmp_path).late
    assert "mostly in its backward" in said


def test_a_backward_operator_is_told_with_the_module_of_its_forward(tmp_path: Path) -> None:
    made, waits = job(late_by=3_000)
    for number, (came, own) in enumerate(waits):
        made[2].frame("nn.Module: Embedding_0", came - 5_000, 1_000)
        made[2].frame("torch/nn/functional.py(2): embedding", came - 4_990, 900)
        made[2].op(
            "aten::index", came - 4_900, 100, **{"Sequence number": number, "Fwd thread id": 0}
        )
        made[2].op(BACKWARD, came, own - came - 10, AUTOGRAD,
                   **{"Sequence number": number, "Fwd thread id": 1})  # fmt: skip
    assert study(made, tmp_path).ranks[2].doing[0] == Activity(
        side="host", name="IndexBackward0", phase="backward", module="Embedding_0", ns=6 * 2_990_000
    )


def test_time_before_the_late_ranks_trace_begins_is_said_so(tmp_path: Path) -> None:
    made, _ = job(late_by=3_000)
    made[2].events = [e for e in made[2].events if e["args"].get("stream") == 20]
    assert study(made, tmp_path).ranks[2].doing[0].side == "unrecorded"
    made[2].events = made[2].events[:1]
    for rank in (made[0], made[1], made[3]):
        rank.events = [e for e in rank.events if e["ts"] < 15_000 - rank.behind]
    assert study(made, tmp_path).ranks[2].doing == (
        Activity(side="before the trace", ns=3_000_000),
    )


def test_arrivals_within_microseconds_name_nobody(tmp_path: Path) -> None:
    made, _ = job(late_by=3)
    told_ = study(made, tmp_path)
    assert [rank.late_count for rank in told_.ranks] == [0, 0, 0, 0]
    assert told_.late == "no rank was late: arrivals in 6 collectives differ by 3.00 µs at most"


def test_time_in_another_collective_is_not_called_work(tmp_path: Path) -> None:
    made, waits = job(late_by=3_000)
    for came, own in waits:
        made[2].kernel("ncclDevKernel_AllGather_RING_LL", came, own - came - 10, stream=30)
    first = study(made, tmp_path).ranks[2].doing[0]
    assert first == Activity(name="communication (all_gather)", ns=6 * 2_990_000)


def test_kernels_side_by_side_are_not_counted_twice(tmp_path: Path) -> None:
    made, waits = job(late_by=3_000)
    for came, own in waits:
        made[2].work("aten::mm", came, own - 1_000, HOST)
        made[2].kernel("other_kernel", came + 500, own - came - 500, stream=9)
    assert study(made, tmp_path).ranks[2].doing == (
        Activity(name="aten::mm", ns=6 * 2_000_000),
        Activity(name="other_kernel", ns=6 * 1_000_000),
    )


def ran(name: str, ns: int) -> Activity:
    return Activity(name=name, ns=ns)


def on_host(name: str, ns: int, phase: str = "") -> Activity:
    return Activity(side="host", name=name, ns=ns, phase=phase)


@pytest.mark.parametrize(
    ("did", "said"),
    [
        ((ran("aten::mm", 51), ran("aten::add", 49)), ", mostly while it ran aten::mm"),
        (
            (ran("aten::mm", 50), ran("aten::add", 50)),
            ", the largest part of it (50 %) while it ran aten::mm",
        ),
        (  # the largest is told though idling takes most together
            (Activity(side="before the trace", ns=40), on_host("a", 35), on_host("b", 25)),
            ", the largest part of it (40 %) before its trace begins; 60 % while its device was "
            "idle",
        ),
        (
            (on_host("a", 35), on_host("b", 33), ran("aten::mm", 32)),
            ", mostly while its device was idle, the largest part of it (35 %) while its device "
            "was idle and its host in a",
        ),
        (
            (ran("aten::mm", 40), on_host("a", 31, "backward"), on_host("b", 29, "backward")),
            ", the largest part of it (40 %) while it ran aten::mm; 60 % in its backward",
        ),
    ],
)
def test_mostly_is_more_than_half_and_the_largest_part_is_never_skipped(
    did: tuple[Activity, ...], said: str
) -> None:
    assert main_activity(did) == said
