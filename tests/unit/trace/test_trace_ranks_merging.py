"""Several ranks added up: a bad file is left out and named, and costs the others nothing."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from jobs_made import Rank
from traces_made import HOST, Made

from ridgeline.records.facts import Check
from ridgeline.records.trace import Ranks, Region, TraceStudy, TraceVerdict
from ridgeline.trace.ranks.merging import merged
from ridgeline.trace.study import study

V100 = {"id": 0, "name": "V100", "numSms": 80}
H100 = {"id": 0, "name": "H100", "numSms": 132}


def rank(number: int | None, idle: int = 200, device: dict[str, object] | None = None,
         world: int | None = None) -> Rank:  # fmt: skip
    """Four collectives of 100 µs, then a kernel of 100 µs after `idle` µs, launched 5 µs before."""
    made = Rank(number)
    made.beside["deviceProperties"] = [device or V100]
    if number is not None and world:
        made.beside["distributedInfo"]["world_size"] = world
    for step in range(4):
        made.collective(1_000 + step * 100, 1_100 + step * 100)
    made.work("aten::mm", 1_400 + idle, 1_500 + idle)
    return made


def told_of(made: Sequence[Made], folder: Path, cut: int | None = None) -> TraceStudy:
    """`cut`: that file ends where its first kernel would begin."""
    paths = [one.write(folder, f"{i}.json") for i, one in enumerate(made)]
    if cut is not None:
        text = paths[cut].read_text()
        paths[cut].write_text(text[: text.index('"cat": "kernel"') - 12])
    return study(paths, cache=False)[0]


def claims(found: TraceStudy) -> list[str]:
    return [check.claim for check in found.validation if check.severity != "note"]


def host_only(number: int) -> Rank:
    made = Rank(number)
    made.op("aten::mm", 10, 1_000)
    return made


def test_windows_are_each_ranks_own(tmp_path: Path) -> None:
    found = told_of([rank(0, 200), rank(1, 500)], tmp_path)
    assert [d.window.ns for d in found.devices] == [700_000, 1_000_000]
    assert found.idle.total_ns == 700_000
    # 700 of 1,700 µs
    assert found.verdict is not None
    assert found.verdict.code == TraceVerdict.IDLE
    lengths = {"devices": 2, "window_ns": 700_000, "longest_ns": 1_000_000}
    assert found.verdict.facts.items() >= lengths.items()
    assert found.verdict.facts["share"] == pytest.approx(7 / 17)


def test_sections_of_one_rank_say_which(tmp_path: Path) -> None:
    found = told_of([rank(4), rank(5)], tmp_path)
    assert found.launch.of == "rank 4"
    assert found.critical_path.of == "rank 4"
    assert "(rank 4)" in found.roofline.device
    assert told_of([rank(4)], tmp_path).launch.of == ""


def test_a_rank_without_device_work_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    found = told_of([host_only(0), rank(1, 200), rank(2, 500)], tmp_path)
    assert "rank 0 left out: no device work recorded" in claims(found)
    assert (found.label, found.idle.total_ns) == ("2 of 3 ranks", 700_000)
    assert [d.rank for d in found.devices] == [1, 2]
    assert found.window.ns == 1_000_000
    assert found.launch.of == "rank 1"
    assert found.idle.trust.confidence == "good", found.idle.trust.why
    assert found.verdict is not None
    assert found.verdict.facts["devices"] == 2


def test_a_file_cut_before_its_kernels_is_left_out(tmp_path: Path) -> None:
    found = told_of([rank(0, 200), rank(1, 500), rank(2)], tmp_path, cut=2)
    assert "rank 2 left out: the file is cut short before any device work" in claims(found)
    assert found.idle.total_ns == 700_000
    assert found.ranks is not None
    assert len(found.ranks.ranks) == 3
    errors = [c for c in found.validation if c.severity != "note" and c.claim.startswith("rank 2:")]
    assert errors
    assert not any("idle" in check.affects for check in errors)


def broken(number: int) -> Rank:
    """Its clock jumps by an hour: idle time is unreliable."""
    made = rank(number)
    made.work("aten::mm", 3_600_000_000, 3_600_000_100)
    return made


def test_a_rank_with_a_broken_clock_does_not_hide_the_others_idle_time(tmp_path: Path) -> None:
    found = told_of([rank(0, 200), broken(1), rank(2, 500)], tmp_path)
    (claim,) = [c for c in claims(found) if "left out" in c]
    assert claim.startswith("rank 1 left out: busy and idle time cannot be told: the clock jumps")
    assert found.idle.total_ns == 700_000
    assert sum(d.busy_ns or 0 for d in found.devices) == 1_000_000
    assert sum(c.ns for c in found.idle.causes) == 700_000


def test_where_most_ranks_cannot_be_believed_nothing_is_added_up(tmp_path: Path) -> None:
    found = told_of([rank(0), broken(1), broken(2)], tmp_path)
    assert found.idle.total_ns is None
    assert found.idle.trust.confidence == "unreliable"
    assert found.idle.trust.why.startswith("ranks 1 and 2: the clock jumps")
    assert not [c for c in claims(found) if "left out" in c]
    assert len(found.devices) == 3


def test_ranks_all_without_a_device_are_all_kept(tmp_path: Path) -> None:
    found = told_of([host_only(0), host_only(1)], tmp_path)
    assert found.label == "2 ranks"
    assert not [c for c in claims(found) if "left out" in c]
    assert [row.host_ns for row in found.ops] == [2_000_000]


def loose(number: int, idle: int) -> Rank:
    """The last kernel, one of five, has no launching call: idle causes are doubtful."""
    made = rank(number, idle)
    made.events = [e for e in made.events if not (e["cat"] == "cuda_runtime" and e["tid"] == HOST)]
    return made


@pytest.mark.parametrize(("idle", "confidence"), [(150, "good"), (600, "doubtful")])
def test_doubts_of_some_ranks_are_named_and_count_by_their_idle_time(
    idle: int, confidence: str, tmp_path: Path
) -> None:
    """Of ranks 1 and 3: 300 of 900 µs, or 1,200 of 1,800."""
    made = [rank(0, 300), loose(1, idle), rank(2, 300), loose(3, idle)]
    found = told_of(made, tmp_path)
    assert found.idle.total_ns == (600 + 2 * idle) * 1_000
    assert found.idle.trust.confidence == confidence
    assert found.idle.trust.why.startswith("ranks 1 and 3: 1 of 5 device operations")
    (check,) = [c for c in found.validation if c.id == "no-launch"]
    assert check.claim.startswith("ranks 1 and 3: ")
    assert ("idle causes" in check.affects) == (confidence == "doubtful")
    assert "launch" not in check.affects  # launch figures are rank 0's


def test_doubts_with_other_figures_are_one_doubt(tmp_path: Path) -> None:
    three = loose(2, 100)
    three.work("aten::add", 1_600, 1_700)
    found = told_of([rank(0, 900), loose(1, 100), three], tmp_path)
    assert found.idle.trust.why.startswith("ranks 1 and 2 (figures of rank 1): 1 of 5 device")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ([rank(0), rank(1, device=H100)], "their devices are 1 × V100 and 1 × H100"),
        ([rank(0, world=2), rank(1, world=8)], "they tell of jobs of 2 and 8 ranks"),
        ([rank(3), rank(3)], "of the files 2 are rank 3"),
        (
            [Rank(0).work("aten::mm", 10, 20), Rank(1).work("aten::mm", 10, 20)],
            "they share no collective",
        ),
    ],
)
def test_files_that_are_not_one_job_are_told_first(
    made: list[Rank], why: str, tmp_path: Path
) -> None:
    first = told_of(made, tmp_path).validation[0]
    assert (first.id, first.severity) == ("not-one-job", "warning")
    assert first.claim == f"these do not look like ranks of one job: {why}"


def test_ranks_of_one_job_are_not_called_strangers(tmp_path: Path) -> None:
    found = told_of([rank(0, world=2), rank(1, world=2)], tmp_path)
    assert claims(found) == []
    silent = [Rank(r).work("aten::mm", 10, 20) for r in range(2)]
    for one in silent:  # alike in all they tell; they only did not talk while recorded
        one.beside["distributedInfo"]["world_size"] = 2
    assert "not-one-job" not in [c.id for c in told_of(silent, tmp_path).validation]


def test_regions_of_all_ranks_are_added_up(tmp_path: Path) -> None:
    graph = Region(kind="graph", name="g", count=2, host_ns=3, device_ns=50, operations=7)
    other = Region(kind="compiled", name="c", count=1, host_ns=80, device_ns=0, operations=0)
    one = told_of([rank(0)], tmp_path)
    two = [msgspec.structs.replace(one, regions=r) for r in ((graph,), (graph, other))]
    found = merged(two, Ranks(), 50, [Check(id="x", severity="note", claim="first")])
    assert [(r.name, r.count, r.host_ns, r.device_ns, r.operations) for r in found.regions] == [
        ("g", 4, 6, 100, 14),
        ("c", 1, 80, 0, 0),
    ]
    assert found.validation[0].claim == "first"
