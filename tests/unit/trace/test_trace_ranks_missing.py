"""Who was last is only said where every member of the group shows the collective."""

from pathlib import Path

import pytest
from jobs_made import ALL_REDUCE, Rank, study, told

Job = list[Rank]


def job(size: int, world: int | None = None, told_too: bool = False, steps: int = 5) -> Job:
    """All-reduces of 100 µs; rank r comes 10·r µs after rank 0, so the last rank is late."""
    made = [Rank(r, 1_000 * r) for r in range(size)]
    for r, rank in enumerate(made):
        if world is not None:
            rank.beside["distributedInfo"]["world_size"] = world
        for step in range(steps):
            at = 10_000 + step * 1_000 + step**2
            args = told(step, size=size, members=str(list(range(size)))) if told_too else {}
            rank.collective(at + 10 * r, at + 10 * (size - 1) + 100, **args)
    return made


@pytest.mark.parametrize(("world", "told_too"), [(8, False), (None, True), (8, True)])
def test_half_of_the_ranks_name_nobody(world: int | None, told_too: bool, tmp_path: Path) -> None:
    found = study(job(8, world, told_too)[:4], tmp_path)
    assert (found.matched, found.unmatched) == (5, 0)
    assert [(r.wait_ns, r.transfer_ns, r.late_count) for r in found.ranks] == [(None, None, 0)] * 4
    assert found.collectives == ()
    assert found.late == ""
    assert found.trust.confidence == "unreliable"
    assert found.trust.why == (
        "4 of 8 ranks are here: 4 to 7 are missing, so nobody can say who was last"
    )
    assert [r.clock_offset_ns for r in found.ranks] == [0, 10**6, 2 * 10**6, 3 * 10**6]


@pytest.mark.parametrize(("world", "told_too"), [(8, False), (None, True), (None, False)])
def test_all_ranks_name_the_last(world: int | None, told_too: bool, tmp_path: Path) -> None:
    found = study(job(8, world, told_too), tmp_path)
    assert found.trust.confidence == "good", found.trust.why
    assert [r.wait_ns for r in found.ranks] == [5 * 10_000 * (7 - r) for r in range(8)]
    assert found.late.startswith("rank 7 joined last in 5 of 5 collectives")


def test_a_shortened_list_of_members_gives_the_size_and_no_names(tmp_path: Path) -> None:
    made = [Rank(0), Rank(1)]
    for step in range(4):
        for one in made:
            one.collective(step * 1_000, step * 1_000 + 50,
                           **told(step, size=64, members="[0, 1, ..., 63]"))  # fmt: skip
    why = study(made, tmp_path).trust.why
    assert why == "2 of 64 ranks are here, so nobody can say who was last"


def test_a_group_that_is_whole_is_split_beside_one_that_is_not(tmp_path: Path) -> None:
    """Ranks 0 and 1 of four: their own group is split, 200 µs waited; that of all four is not."""
    made = [Rank(0), Rank(1)]
    for step in range(4):
        at = 10_000 + step * 5_000
        for r, one in enumerate(made):
            own = told(step, group="pair", members="[0, 1]")
            one.collective(at + 200 * r, at + 700, **own)
            world = told(step, size=4, group="world", members="[0, 1, 2, 3]")
            one.collective(at + 1_000 + r, at + 1_100, **world)
    found = study(made, tmp_path)
    assert [r.wait_ns for r in found.ranks] == [4 * 200_000, 0]
    assert [r.transfer_ns for r in found.ranks] == [4 * 500_000] * 2
    assert [row.group for row in found.collectives] == ["pair [0, 1]"]
    assert found.late.startswith("rank 1 joined last in 4 of 4 collectives")
    assert found.trust.confidence == "doubtful"
    assert found.trust.why == (
        "2 of 4 ranks of a process group are here: 2 and 3 are missing, so nobody can say who was "
        "last"
    )


@pytest.mark.parametrize("told_too", [True, False])
@pytest.mark.parametrize("lost", [1, 3])
def test_a_collective_that_one_rank_lost_is_not_matched(
    lost: int, told_too: bool, tmp_path: Path
) -> None:
    made = job(4, 4, told_too, steps=12)
    kernels = [e for e in made[1].events if e["name"] == ALL_REDUCE][:lost]
    made[1].events = [e for e in made[1].events if e not in kernels]
    found = study(made, tmp_path)
    assert (found.matched, found.unmatched) == (12 - lost, lost)
    assert found.ranks[0].wait_ns == (12 - lost) * 30_000
    assert found.collectives[0].count == 12 - lost
    assert found.trust.confidence == "doubtful"
    assert f"{lost} of 12 collectives are not on all ranks (rank 1 lacks {lost})" in found.trust.why
    assert found.late.startswith(f"rank 3 joined last in {12 - lost} of {12 - lost} collectives")


def test_nobody_is_called_late_by_the_small_part_that_is_left(tmp_path: Path) -> None:
    """Rank 3 costs most in a long collective that rank 1 lost; rank 0 is last in short ones."""
    made = [Rank(r) for r in range(4)]
    for r, one in enumerate(made):
        if r != 1:
            one.collective(10_000 + (5_000 if r == 3 else 0), 16_000, **told(0, size=4))
        for step in range(1, 5):
            at = 20_000 + step * 1_000
            one.collective(at + (50 if r == 0 else 0), at + 100, **told(step, size=4))
    found = study(made, tmp_path)
    # split: four times 50 + 3 · 100 µs; not split: 6,000 + 6,000 + 1,000
    assert "is 10 % of the time in collectives" in found.trust.why
    assert found.late == ""
    assert found.ranks[0].late_count == 4


def test_a_rank_without_kernels_does_not_take_the_others_clocks(tmp_path: Path) -> None:
    made = job(4, 4)
    made[3] = Rank(3)
    made[3].beside["distributedInfo"]["world_size"] = 4
    made[3].span("nccl:all_reduce", 100, 20)
    made[3].op("aten::mm", 200, 500)
    found = study(made, tmp_path)
    assert [r.clock_offset_ns for r in found.ranks] == [0, 10**6, 2 * 10**6, 0]
    assert found.matched == 5
    assert found.ranks[0].wait_ns is None
    assert found.ranks[3].compute_ns == 0  # operators of a host beside devices only launch
    assert "3 of 4 ranks are here: 3 shows no collective, so nobody" in found.trust.why
    assert "asked for" not in found.trust.why


def test_groups_that_nothing_joins_are_aligned_each_among_themselves(tmp_path: Path) -> None:
    """[0, 1] and [2, 3]: rank 1 is 30 µs late in its own, rank 2 is 70 µs late in its own."""
    behind = [0, 500, 7_000, 9_000]
    made = [Rank(r, b) for r, b in enumerate(behind)]
    late = {1: 30, 2: 70}
    for step in range(5):
        at = 10_000 + step * 1_000 + step**2
        for r, one in enumerate(made):
            members = "[0, 1]" if r < 2 else "[2, 3]"
            one.collective(at + late.get(r, 0), at + 100, **told(step, members=members))
    found = study(made, tmp_path)
    assert [r.clock_offset_ns for r in found.ranks] == [0, 500_000, 0, 2_000_000]
    assert [r.wait_ns for r in found.ranks] == [150_000, 0, 0, 350_000]
    assert (found.matched, found.unmatched) == (10, 0)
    assert found.trust.confidence == "doubtful"
    assert found.trust.why == (
        "no collective joins ranks 0 and 1 and ranks 2 and 3: their clocks are not comparable"
    )


def test_a_group_of_one_is_nothing_to_match(tmp_path: Path) -> None:
    made = job(2, 2, told_too=True)
    made[0].collective(50_000, 50_100, **told(9, size=1, group="own", members="[0]"))
    found = study(made, tmp_path)
    assert (found.matched, found.unmatched) == (5, 0)
    assert found.trust.confidence == "good", found.trust.why


def test_a_file_without_a_rank_does_not_renumber_the_others(tmp_path: Path) -> None:
    made = [Rank(None).work("aten::mm", 100, 200), *job(2, 2)]
    found = study(made, tmp_path)
    assert [(r.rank, r.label) for r in found.ranks] == [
        (2, "0.json"),
        (0, "rank 0"),
        (1, "rank 1"),
    ]
    assert found.late.startswith("rank 1 joined last in 5 of 5 collectives")
    assert found.collectives[0].late_rank == 1
    assert found.trust.confidence == "doubtful"
    assert "1 of 3 files have no rank in them" in found.trust.why
    assert "0.json shares no collective with the others" in found.trust.why
