"""Time in collectives splits into waiting for the last rank and moving bytes, exactly."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from jobs_made import Rank, study, told
from traces_made import WORKER, Made

from ridgeline.records.trace import Activity, Window
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.collectives import FAMILIES, family_of
from ridgeline.trace.ranks.job import ranks
from ridgeline.trace.ranks.waiting import bus_factor


def test_waiting_transfer_and_bandwidth_are_exact(tmp_path: Path) -> None:
    """Two ranks, 1 MB all-reduced in 100 µs; rank 1 comes 400 µs late every time."""
    made = [Rank(0), Rank(1, 12_345)]
    for step in range(5):
        end = 10_000 + step * 1_000
        made[0].collective(end - 500, end, **told(step))
        made[1].collective(end - 100, end, **told(step))
    told_ = study(made, tmp_path)
    assert [(r.wait_ns, r.transfer_ns) for r in told_.ranks] == [(2_000_000, 500_000), (0, 500_000)]
    assert [(r.late_count, r.caused_wait_ns) for r in told_.ranks] == [(0, 0), (5, 2_000_000)]
    (row,) = told_.collectives
    assert (row.name, row.count, row.bytes, row.late_rank) == ("all_reduce", 5, 1_000_000, 1)
    assert (row.wire_ns, row.wait_ns, row.skew_ns) == (100_000, 2_000_000, 400_000)
    assert row.algorithm_bytes_s == pytest.approx(1e10)
    assert row.bus_bytes_s == pytest.approx(1e10)  # 2 (n - 1) / n is 1 for two ranks


def test_an_all_gather_counts_what_comes_out(tmp_path: Path) -> None:
    made = [Rank(r) for r in range(4)]
    for step in range(3):
        for rank in made:
            rank.collective(step * 1_000, step * 1_000 + 100, "ncclDevKernel_AllGather_RING_LL",
                            **told(step, "_allgather_base", 1_000, 4, out=4_000))  # fmt: skip
    (row,) = study(made, tmp_path).collectives
    assert (row.name, row.bytes, row.late_rank) == ("all_gather", 16_000, None)
    assert row.bus_bytes_s == pytest.approx(16_000 / 100e-6 * 3 / 4)


def test_sizes_come_from_the_operator_where_the_kernel_has_none(tmp_path: Path) -> None:
    made = [Rank(0), Rank(1)]
    for step in range(3):
        for rank in made:
            rank.op("record_param_comms", step * 1_000 - 7, 6, **told(step, items=10))
            rank.launch("ncclDevKernel_Generic_4(x)", step * 1_000 - 5, step * 1_000, 20, step + 1)
    (row,) = study(made, tmp_path).collectives
    assert (row.name, row.bytes, row.group) == ("all_reduce", 40, "0 [0, 1]")


def test_bus_factors_are_those_of_the_library() -> None:
    assert bus_factor("all_reduce", 8) == 1.75
    assert [bus_factor(f, 8) for f in ("all_gather", "reduce_scatter", "all_to_all")] == [0.875] * 3
    assert (bus_factor("broadcast", 8), bus_factor("reduce", 8)) == (1, 1)
    assert bus_factor("all_reduce", 0) is None
    assert bus_factor("", 8) is None


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half", "reduce_scatter"),
        ("ncclAllGatherRingLLKernel_sum_i8", "all_gather"),
        ("ncclDevKernel_Reduce_Sum_f32", "reduce"),
        ("_c10d_functional::all_to_all_single", "all_to_all"),
        ("gloo:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("ncclDevKernel_Generic_1", ""),
        ("record_param_comms", ""),
    ],
)
def test_families_are_known_by_every_spelling(name: str, family: str) -> None:
    assert FAMILIES[family_of(name)] == family


def test_overlap_is_the_share_of_communication_behind_compute(tmp_path: Path) -> None:
    one = Rank(0)
    one.collective(100, 500).work("aten::mm", 200, 300).work("aten::mm", 450, 600)
    one.kernel("Memcpy HtoD", 110, 20, cat="gpu_memcpy")
    (rank,) = study([one], tmp_path).ranks
    assert (rank.compute_ns, rank.communication_ns) == (250_000, 400_000)
    assert rank.exposed_communication_ns == 250_000
    assert rank.overlap == pytest.approx(150 / 400)
    assert rank.busy_ns == 500_000
    assert rank.busy_ns + (rank.idle_ns or 0) == rank.window_ns


def test_one_trace_has_totals_and_no_split(tmp_path: Path) -> None:
    told_ = study([Rank(3).collective(100, 500)], tmp_path)
    (rank,) = told_.ranks
    assert (rank.rank, rank.communication_ns) == (3, 400_000)
    assert rank.wait_ns is None
    assert rank.transfer_ns is None
    assert "one trace" in told_.trust.why
    assert told_.late == ""


@pytest.mark.parametrize(
    ("given_ranks", "why"), [((None, None), "no rank"), ((4, 4), "share a rank")]
)
def test_ranks_that_are_not_told_apart_are_numbered_and_said_so(
    given_ranks: tuple[int | None, int | None], why: str, tmp_path: Path
) -> None:
    made = [Rank(rank) for rank in given_ranks]
    for step in range(4):
        for one in made:
            one.collective(step * 1_000, step * 1_000 + 50)
    told_ = study(made, tmp_path)
    assert [rank.rank for rank in told_.ranks] == [0, 1]
    assert why in told_.trust.why
    assert told_.trust.confidence == "doubtful"


def test_only_collectives_inside_every_window_are_split(tmp_path: Path) -> None:
    made = [Rank(0), Rank(1, 12_345)]
    for step in range(5):
        end = 10_000 + step * 1_000
        made[0].collective(end - 500, end, **told(step))
        made[1].collective(end - 100, end, **told(step))
    traces = [one.trace(tmp_path, f"{i}.json") for i, one in enumerate(made)]
    ends = [12_400_000, 13_850_000 - 12_345_000]  # three collectives of rank 0, four of rank 1
    windows = [Window(start_ns=-(10**9), end_ns=end, basis="made", steps=0) for end in ends]
    told_ = ranks(traces, [Links(trace) for trace in traces], windows)
    assert told_.ranks[0].wait_ns == 3 * 400_000
    assert (told_.matched, told_.collectives[0].count) == (5, 3)
    assert told_.ranks[1].communication_ns == 4 * 100_000


def test_missing_members_of_a_group_are_said(tmp_path: Path) -> None:
    made = [Rank(0), Rank(1)]
    for step in range(4):
        for one in made:
            one.collective(step * 1_000, step * 1_000 + 50, **told(step, size=8))
    assert "2 of 8 ranks are here" in study(made, tmp_path).trust.why


def test_nothing_in_the_traces_is_an_answer(tmp_path: Path) -> None:
    assert study([], tmp_path).ranks == ()
    told_ = study([Made(), Made()], tmp_path)
    assert [rank.communication_ns for rank in told_.ranks] == [0, 0]
    assert told_.ranks[0].busy_ns is None
    assert told_.trust.confidence == "unreliable"


def test_gloo_spans_are_collectives_of_the_host(tmp_path: Path) -> None:
    made = [Rank(0), Rank(1, 5_000)]
    for step in range(6):
        end = 1_000 + step * 1_000
        made[0].span("gloo:all_reduce", end - 300, 300, WORKER)
        made[1].span("gloo:all_reduce", end - 100, 100, WORKER)
        made[1].op("aten::sort", end - 320, 215)
    told_ = study(made, tmp_path)
    assert [rank.wait_ns for rank in told_.ranks] == [1_200_000, 0]
    assert told_.ranks[1].clock_offset_ns == 5_000_000
    assert told_.ranks[1].doing[0] == Activity(side="host", name="aten::sort", ns=195_000 * 6)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    arrivals=some.lists(
        some.lists(some.integers(1, 400), min_size=3, max_size=3), min_size=3, max_size=12
    ),
    behind=some.lists(some.integers(-(10**9), 10**9), min_size=3, max_size=3),
)
def test_waits_equal_the_obvious_sum(
    arrivals: list[list[int]], behind: list[int], tmp_path: Path
) -> None:
    """Each rank's kernel of step i lasts arrivals[i][rank] µs and ends with the others'."""
    made = [Rank(r, b) for r, b in enumerate(behind)]
    for step, durations in enumerate(arrivals):
        end = 10_000 + step * 1_000
        for rank, duration in zip(made, durations, strict=True):
            rank.collective(end - duration, end, **told(step, size=3))
    told_ = study(made, tmp_path)
    waits = [sum(d[r] - min(d) for d in arrivals) * 1_000 for r in range(3)]
    assert [rank.wait_ns for rank in told_.ranks] == waits
    assert [rank.transfer_ns for rank in told_.ranks] == [sum(map(min, arrivals)) * 1_000] * 3
    assert [r.clock_offset_ns for r in told_.ranks] == [(b - behind[0]) * 1_000 for b in behind]
