"""The memory of a run in its report, its page and its JSON form."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.records.facts import Place, because
from ridgeline.records.memory import (
    AdviceCode,
    DeviceMemory,
    Growth,
    LevelsOverTime,
    LineMemory,
    MemoryAdvice,
    MemoryKind,
    MemoryStudy,
    Owner,
    Peak,
    Shortage,
)
from ridgeline.records.run import OutOfMemory
from ridgeline.records.run_summary import MemoryUse, RoleMemory, RunSummary
from ridgeline.records.step_memory import HeldTensors
from ridgeline.report.document import Item, Table, plain
from ridgeline.report.drawings import CurvesPlot
from ridgeline.report.views.run import data, document
from ridgeline.report.views.run_memory import memory_blocks, memory_items, memory_section
from tests.unit.report import made_up_run as made
from tests.unit.report.made_up_trace import NASTY
from tests.unit.report.rendered import at_terminal, bare_page

MIB, GIB = 2**20, 2**30
KINDS = {MemoryKind.ACTIVATION: 60 * MIB, MemoryKind.PARAMETER: 40 * MIB}


def device(**changed: Any) -> DeviceMemory:
    place = Place("src/train.py", 12, "forward")
    whole = DeviceMemory(
        device="cpu",
        peak=Peak(
            bytes=100 * MIB, at_ns=5_000_000, step=14, phase="forward", by_kind=KINDS,
            owners=(
                Owner(place=place, kind=MemoryKind.ACTIVATION, bytes=60 * MIB, blocks=4,
                      module="Net / Block"),
                Owner(place=None, kind=MemoryKind.PARAMETER, bytes=40 * MIB, blocks=8),
                Owner(place=place, kind=MemoryKind.INPUT, bytes=10, blocks=1),
            ),
        ),
        levels=LevelsOverTime(
            at_ns=(0, 5_000_000, 9_000_000), step_starts_ns=(0,),
            levels={MemoryKind.ACTIVATION: (0, 60 * MIB, 0), MemoryKind.PARAMETER: (40 * MIB,) * 3},
        ),
        lines=(
            LineMemory(place=place, allocated_bytes=60.0 * MIB, released_bytes=0.0,
                       high_water_bytes=60 * MIB, largest_bytes=15 * MIB, blocks=4.0,
                       kind=MemoryKind.ACTIVATION),
        ),
        events=500,
    )  # fmt: skip
    return replace(whole, **changed)


def summary(one: DeviceMemory, **changed: Any) -> RunSummary:
    study = MemoryStudy(source="run", origin="trace", devices=(one,), steps=3)
    return replace(made.summary(), memory_study=study, **changed)


def items(whole: RunSummary) -> dict[str, Item]:
    return {one.label: one for one in memory_items(whole)}


def lines(found: Item) -> str:
    return "\n".join(plain(line) for line in found.lines)


def test_the_report_says_when_the_peak_is_and_what_it_is_made_of() -> None:
    (found,) = items(summary(device(), memory=MemoryUse())).values()
    assert found.label == "memory"
    assert all(part in lines(found) for part in ("100 MiB", "forward", "step 14", "60 %", "40 %"))
    assert "train.py:12 60 MiB" in lines(found)
    assert found.level == "plain"


def test_a_few_kilobytes_are_not_worth_a_line() -> None:
    small = device(peak=Peak(bytes=1000, at_ns=0, by_kind={MemoryKind.INPUT: 1000}))
    assert items(summary(small, memory=MemoryUse())) == {}


def test_growth_is_told_with_its_line_and_its_holder() -> None:
    grown = Growth(
        place=Place("train.py", 9), kind=MemoryKind.UNKNOWN, bytes_per_step=MIB, steps=40,
        blocks_per_step=1, held_by=("list `kept` of train.py:main",),
    )  # fmt: skip
    found = items(summary(device(growth=(grown,)), memory=MemoryUse()))["memory"]
    assert found.level == "doubt"
    assert "grows 1 MiB a step at train.py:9, held by list `kept` of train.py:main" in lines(found)


def test_workers_are_counted_and_shared_pages_once_where_that_is_known() -> None:
    roles = (
        RoleMemory(role="program", processes=1, rss_bytes=500 * MIB, pss_bytes=400 * MIB),
        RoleMemory(role="loader workers", processes=2, rss_bytes=800 * MIB, pss_bytes=100 * MIB),
    )
    known = items(summary(device(), memory=MemoryUse(roles=roles)))["processes"]
    assert "2 loader workers 800 MiB" in lines(known)
    assert "together 500 MiB" in lines(known)
    unknown = tuple(replace(role, pss_bytes=None) for role in roles)
    found = items(summary(device(), memory=MemoryUse(roles=unknown)))["processes"]
    assert "shared pages count in each" in lines(found)


def shortage(**changed: Any) -> RunSummary:
    failed = Shortage(
        requested_bytes=80 * MIB, free_bytes=MIB, total_bytes=4 * GIB, largest_free_bytes=8 * MIB,
        fragmented=False, place=Place("train.py", 12), usual_bytes=8 * MIB,
    )  # fmt: skip
    ways = tuple(
        MemoryAdvice(
            reason=because(AdviceCode.SMALLER_BATCH, activations_bytes=size, factor=0.5),
            saves_bytes=size, slowdown=slowdown,
        )
        for size, slowdown in ((4 * MIB, 1.0), (3 * MIB, 1.25), (2 * MIB, None), (MIB, None))
    )  # fmt: skip
    full = OutOfMemory(
        asked_bytes=80 * MIB, free_bytes=MIB, total_bytes=4 * GIB, on="host",
        held=(HeldTensors(holder="container", name="kept", owner="local", owner_name="main",
                          file="/job/train.py", entries=99, bytes=3 * GIB),),
    )  # fmt: skip
    one = device(shortages=(replace(failed, **changed),), advice=ways)
    return summary(one, out_of_memory=full, memory=MemoryUse())


def test_after_a_shortage_the_request_the_holders_and_three_ways_are_told() -> None:
    found = items(shortage())
    assert set(found) == {"request", "tensors", "held by", "to fit"}
    assert "truly full" in lines(found["request"])
    assert "10 times" in lines(found["request"])
    assert "`kept` of train.py:main 3 GiB in 99 tensors" in lines(found["held by"])
    ways = [plain(line) for line in found["to fit"].lines]
    assert len(ways) == 3
    assert ways[0].endswith("costs no time")
    assert ways[1].endswith("a step takes 25 % longer")


def test_a_fragmented_device_is_told_from_a_full_one() -> None:
    found = lines(items(shortage(fragmented=True))["request"])
    assert "fragmented" in found
    assert "8 MiB" in found
    assert "truly full" not in found


def test_free_memory_read_after_the_error_is_not_held_against_the_request() -> None:
    assert "truly full" not in lines(items(shortage(free_bytes=GIB))["request"])


def test_lines_that_were_alive_are_named_where_nothing_else_is_known() -> None:
    full = OutOfMemory(asked_bytes=1, free_bytes=0, total_bytes=0, alive=(("train.py:3", GIB, 2),))
    whole = replace(made.summary(), out_of_memory=full, memory=MemoryUse())
    assert lines(items(whole)["held by"]) == "1 GiB allocated at train.py:3"


def test_the_tables_are_in_the_full_report_alone_and_leave_specks_out() -> None:
    (section,) = memory_section(summary(device()))
    assert section.detail == "full"
    owners, by_line = (block for block in section.blocks if isinstance(block, Table))
    assert len(owners.rows) == 2
    assert owners.left_out == 1
    assert [cell.text for cell in by_line.rows[0].cells[:4]] == [
        "train.py:12", "60 MiB", "0 B", "+60 MiB",
    ]  # fmt: skip
    assert "high water" not in at_terminal(document(summary(device())), 100)


def test_the_page_stacks_the_levels_by_kind_and_marks_the_peak() -> None:
    study = MemoryStudy(source="run", origin="trace", devices=(device(),))
    plot = next(block for block in memory_blocks(study) if isinstance(block, CurvesPlot))
    assert plot.stacked
    assert [curve.values[1] for curve in plot.curves] == [60 * MIB, 40 * MIB]
    assert [mark.at for mark in plot.marks if mark.text == "peak"] == [5.0]
    assert [mark.text for mark in plot.marks] == ["step 14", "peak"]
    assert list(memory_blocks(None)) == []


def test_json_has_the_study() -> None:
    found = data(summary(device()))["memory_study"]
    assert found["devices"][0]["peak"]["by_kind"] == {"activation": 60 * MIB, "parameter": 40 * MIB}
    assert data(made.summary())["memory_study"] is None


@pytest.mark.parametrize("name", NASTY)
def test_names_with_special_characters_do_no_harm(name: str) -> None:
    held = Growth(place=Place(name, 9), kind=MemoryKind.UNKNOWN, bytes_per_step=MIB,
                  blocks_per_step=1, steps=40, held_by=(f"list `{name}`",))  # fmt: skip
    whole = summary(device(growth=(held,)))
    assert "<script>" not in bare_page(document(whole))
    assert at_terminal(document(whole), 80)
