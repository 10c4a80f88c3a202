"""Ranks are brought to one clock by their collectives, whatever their wall clocks say."""

import random
from pathlib import Path

import pytest
from jobs_made import ALL_REDUCE, Rank, study, told

HOUR = 3_600_000_000


def job(behind: list[int], steps: int = 12, seed: int = 7, sequence: bool = True) -> list[Rank]:
    """All-reduces at uneven times; each rank comes up to 90 µs before the last one."""
    chance = random.Random(seed)
    made = [Rank(r, b) for r, b in enumerate(behind)]
    at = 10_000
    for step in range(steps):
        at += chance.randrange(500, 3_000)
        for rank in made:
            args = told(step, size=len(behind)) if sequence else {}
            rank.collective(at - chance.randrange(90), at + 50, **args)
    return made


@pytest.mark.parametrize("sequence", [True, False])
def test_clocks_hours_apart_are_aligned_to_the_nanosecond(sequence: bool, tmp_path: Path) -> None:
    behind = [0, 5 * HOUR, -3 * HOUR + 17, 1]
    told_ = study(job(behind, sequence=sequence), tmp_path)
    assert [rank.clock_offset_ns for rank in told_.ranks] == [b * 1_000 for b in behind]
    assert told_.trust.confidence == "good", told_.trust.why
    assert (told_.matched, told_.unmatched) == (12, 0)


@pytest.mark.parametrize("cut", [slice(5, None), slice(None, -5), slice(3, -2)])
def test_a_trace_without_counts_that_was_cut_is_matched_where_it_fits(
    cut: slice, tmp_path: Path
) -> None:
    made = job([0, HOUR], steps=20, sequence=False)
    kernels = [e for e in made[1].events if e["name"] == ALL_REDUCE][cut]
    made[1].events = kernels
    told_ = study(made, tmp_path)
    assert told_.ranks[1].clock_offset_ns == HOUR * 1_000
    assert (told_.matched, told_.unmatched) == (len(kernels), 20 - len(kernels))


def test_both_cut_at_different_ends_still_match(tmp_path: Path) -> None:
    made = job([0, HOUR], steps=20, sequence=False)
    for rank, cut in zip(made, (slice(3, None), slice(None, -3)), strict=True):
        rank.events = [e for e in rank.events if e["name"] == ALL_REDUCE][cut]
    told_ = study(made, tmp_path)
    assert told_.ranks[1].clock_offset_ns == HOUR * 1_000
    assert (told_.matched, told_.unmatched) == (14, 6)


def test_counts_match_across_a_hole_in_one_trace(tmp_path: Path) -> None:
    made = job([0, HOUR])
    at = [i for i, e in enumerate(made[1].events) if e["name"] == ALL_REDUCE][4]
    del made[1].events[at]
    told_ = study(made, tmp_path)
    assert told_.ranks[1].clock_offset_ns == HOUR * 1_000
    assert (told_.matched, told_.unmatched) == (11, 1)


def test_ranks_that_share_no_group_are_aligned_through_a_third(tmp_path: Path) -> None:
    """Two by two: 0-1 and 2-3 reduce together, 0-2 and 1-3 too, never 0-3."""
    behind = [0, 100, 2 * HOUR, -HOUR]
    made = [Rank(r, b) for r, b in enumerate(behind)]
    groups = {"a": (0, 1), "b": (2, 3), "c": (0, 2), "d": (1, 3)}
    for step in range(5):
        for place, (name, members) in enumerate(groups.items()):
            end = 10_000 + step * 1_000 + place * 200 + step**2
            for r in members:
                made[r].collective(end - 40, end, **told(step, group=name, members=str(members)))
    told_ = study(made, tmp_path)
    assert [rank.clock_offset_ns for rank in told_.ranks] == [b * 1_000 for b in behind]
    assert {row.group for row in told_.collectives} == {f"{n} {m}" for n, m in groups.items()}


def test_the_same_group_name_with_other_members_is_another_group(tmp_path: Path) -> None:
    made = [Rank(0), Rank(1)]
    for step in range(4):
        for r, rank in enumerate(made):
            rank.collective(step * 1_000, step * 1_000 + 40, **told(step, members=f"[{r}, 7]"))
    told_ = study(made, tmp_path)
    assert told_.matched == 0
    assert told_.unmatched == 8
    assert told_.trust.confidence == "unreliable"
    assert told_.ranks[0].wait_ns is None


def test_sends_do_not_align(tmp_path: Path) -> None:
    made = job([0, HOUR])
    for step in range(30):  # a pipeline: the receiver ends 400 µs after the sender
        for r, rank in enumerate(made):
            start = 100_000 + step * 1_000 + r * 400
            rank.collective(start, start + 30, "ncclDevKernel_SendRecv", op="c10d::send")
    told_ = study(made, tmp_path)
    assert told_.ranks[1].clock_offset_ns == HOUR * 1_000
    assert told_.matched == 12


def test_an_all_to_all_is_known_by_its_operator_though_its_kernel_says_sendrecv(
    tmp_path: Path,
) -> None:
    made = [Rank(0), Rank(1, 77)]
    for step in range(4):
        for rank in made:
            rank.collective(step * 999, step * 999 + 30, "ncclKernel_SendRecv_RING_SIMPLE_Sum",
                            op="c10d::alltoall_base_")  # fmt: skip
    told_ = study(made, tmp_path)
    assert [row.name for row in told_.collectives] == ["all_to_all"]
    assert told_.ranks[1].clock_offset_ns == 77_000


def test_ends_that_do_not_agree_give_no_waiting_time(tmp_path: Path) -> None:
    chance = random.Random(3)
    made = [Rank(0), Rank(1)]
    for step in range(20):
        for rank in made:
            end = step * 100_000 + chance.randrange(50_000)
            rank.collective(end - 40, end, **told(step))
    told_ = study(made, tmp_path)
    assert told_.trust.confidence == "unreliable"
    assert "may not be the same" in told_.trust.why
    assert told_.ranks[1].wait_ns is None
    assert told_.collectives == ()
    assert told_.late == ""


def test_one_outlier_does_not_move_the_clock(tmp_path: Path) -> None:
    made = job([0, HOUR])
    made[1].collective(900_000, 990_000, **told(99))
    made[0].collective(900_000, 900_100, **told(99))
    assert study(made, tmp_path).ranks[1].clock_offset_ns == HOUR * 1_000


def test_calls_without_kernels_only_count(tmp_path: Path) -> None:
    made = [Rank(0), Rank(1)]
    for step in range(4):
        for rank in made:
            rank.span("nccl:all_reduce", step * 100, 20)
    told_ = study(made, tmp_path)
    assert told_.trust.confidence == "unreliable"
    assert "asked for" in told_.trust.why
    assert told_.ranks[0].wait_ns is None


def test_very_different_numbers_of_collectives_are_doubtful(tmp_path: Path) -> None:
    made = job([0, HOUR], steps=20, sequence=False)
    made[1].events = [e for e in made[1].events if e["name"] == ALL_REDUCE][-6:]
    told_ = study(made, tmp_path)
    assert told_.ranks[1].clock_offset_ns == HOUR * 1_000
    assert told_.trust.confidence == "doubtful"
    assert "6 to 20 collectives" in told_.trust.why
