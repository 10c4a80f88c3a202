"""A study of memory in every format, and names that no format may obey."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.cli.output import formatted
from ridgeline.records.facts import Place, because
from ridgeline.records.memory import (
    AdviceCode,
    DeviceMemory,
    Fragmentation,
    Growth,
    LevelsOverTime,
    MemoryAdvice,
    MemoryChange,
    MemoryComparison,
    MemoryKind,
    MemoryNote,
    MemoryStudy,
    Owner,
    Peak,
    Shortage,
    StackMemory,
)
from ridgeline.report.document import Labelled, SplitChart
from ridgeline.report.drawings import CurvesPlot, IciclePlot
from ridgeline.report.memory_reasons import KIND_NAMES
from ridgeline.report.views import memory, memory_comparison
from tests.unit.report.rendered import at_terminal, bare, blocks, tables

GIB = 1 << 30
NASTY = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e`[bold]`|"
LINE = Place("/home/user/net.py", 75, "forward")
LEAK = Place("/home/user/train.py", 20, "main")
DEVICE = DeviceMemory(
    device="cuda:0",
    peak=Peak(
        bytes=4 * GIB,
        at_ns=1_240_000_000,
        reserved_bytes=5 * GIB,
        step=3,
        phase="backward",
        by_kind={MemoryKind.PARAMETER: GIB, MemoryKind.ACTIVATION: 3 * GIB},
        owners=(
            Owner(place=LINE, kind=MemoryKind.ACTIVATION, bytes=3 * GIB, blocks=24,
                  module="Net / Block"),
            Owner(place=None, kind=MemoryKind.PARAMETER, bytes=GIB, blocks=9),
        ),
        by_module={"Net / Block": 3 * GIB},
        stacks=(
            StackMemory(parent=-1, function="main", file="/home/user/train.py", line=20,
                        is_own=True, bytes=3 * GIB, blocks=24),
            StackMemory(parent=0, function="forward", file="/home/user/net.py", line=75,
                        is_own=True, bytes=3 * GIB, blocks=24),
            StackMemory(parent=-1, function="", file="", line=0, is_own=False, bytes=GIB, blocks=9),
        ),
        before_recording_bytes=GIB,
    ),
    levels=LevelsOverTime(
        at_ns=(0, 1_240_000_000, 2_000_000_000),
        levels={MemoryKind.PARAMETER: (GIB, GIB, GIB), MemoryKind.ACTIVATION: (0, 3 * GIB, 0)},
        reserved=(GIB, 5 * GIB, 5 * GIB),
        step_starts_ns=(0, 1_000_000_000),
    ),
    growth=(Growth(place=LEAK, kind=MemoryKind.ACTIVATION, bytes_per_step=2.0**20,
                   blocks_per_step=1.0, steps=9, held_by=("list losses",)),),
    fragmentation=Fragmentation(
        reserved_bytes=5 * GIB, allocated_bytes=GIB, requested_bytes=GIB, free_bytes=4 * GIB,
        stuck_bytes=GIB, largest_free_bytes=GIB, segments=7, expandable_saves_bytes=GIB, retries=2,
    ),
    advice=(
        MemoryAdvice(reason=because(AdviceCode.CHECKPOINT, activations_bytes=3 * GIB, repeats=12),
                     saves_bytes=2 * GIB, is_bound=True, slowdown=4 / 3, fix="checkpointing"),
        *(
            MemoryAdvice(reason=because(AdviceCode.STOP_GROWTH, file="train.py", line=20,
                                        bytes_per_step=2.0**20), saves_bytes=9 << 20)
            for _ in range(3)
        ),
    ),
    events=1000,
    outside_torch_bytes=2 * GIB,
    notes=(because(MemoryNote.BEFORE_RECORDING, bytes=GIB),),
)  # fmt: skip
STUDY = MemoryStudy(source="/tmp/x.pickle", origin="snapshot", devices=(DEVICE,), steps=10)
SHORT = Shortage(
    requested_bytes=GIB, free_bytes=1 << 20, total_bytes=8 * GIB, largest_free_bytes=GIB // 2,
    fragmented=True, place=LINE, phase="forward", step=3, at_ns=5,
)  # fmt: skip


def test_the_answer_has_the_peak_its_moment_and_the_largest_kinds() -> None:
    answer = memory.headline(STUDY)
    assert answer == (
        "peak 4 GiB at 1.24 s, in the backward of step 3: activations 3 GiB (75 %), "
        "parameters 1 GiB (25 %)"
    )


def test_the_short_view_fits_on_a_screen_and_the_full_one_has_more() -> None:
    text = at_terminal(memory.document(STUDY), 100)
    assert len(text.splitlines()) <= 50
    assert len(at_terminal(memory.document(STUDY, full=True), 100, full=True)) > len(text)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_of_any_width_shows_it(width: int, encoding: str) -> None:
    text = at_terminal(memory.document(STUDY), width, encoding=encoding)
    lines = [line for line in text.splitlines() if "ridgeline memory" not in line]
    assert max(map(len, lines)) <= width  # a command to copy is never broken
    assert "net.py:75" in text


def test_every_kind_has_a_name_and_a_colour() -> None:
    assert set(KIND_NAMES) == set(MemoryKind)
    assert all(name and colour for name, colour in KIND_NAMES.values())


def test_the_page_has_the_curve_and_the_stacks_and_the_terminal_has_the_split() -> None:
    page = [type(block) for block in blocks(memory.page(STUDY))]
    assert CurvesPlot in page
    assert IciclePlot in page
    assert SplitChart not in page
    assert SplitChart in [type(block) for block in blocks(memory.document(STUDY))]


def test_the_curve_is_stacked_and_marks_the_peak_and_the_steps() -> None:
    plot = memory.levels_plot(DEVICE)
    assert plot.stacked
    assert max(a + b for a, b in zip(*(c.values for c in plot.curves), strict=True)) == 4 * GIB  # type: ignore[operator]
    assert plot.marks[0].at == 1.24
    assert len(plot.marks) == 1 + 2


def test_the_fourth_advice_is_in_the_full_view() -> None:
    lists = [b for b in blocks(memory.document(STUDY)) if isinstance(b, Labelled)]
    assert [(len(b.items), b.detail) for b in lists] == [(3, "brief"), (1, "full")]


def test_the_data_has_what_a_program_asks_for() -> None:
    data: dict[str, Any] = json.loads(formatted(memory.memory_report(STUDY), ".json"))
    assert data["peak"]["bytes"] == 4 * GIB
    assert data["peak"]["at"] == {"ns": 1_240_000_000, "step": 3, "phase": "backward"}
    assert data["peak"]["by_kind"] == {"activation": 3 * GIB, "parameter": GIB}
    assert data["peak"]["by_frame"][0]["place"]["line"] == 75
    assert data["peak"]["by_module"] == [{"module": "Net / Block", "bytes": 3 * GIB}]
    assert data["growth"][0]["bytes_per_step"] == 2.0**20
    assert data["fragmentation"]["stuck_bytes"] == GIB
    assert data["advice"][0]["reason"]["code"] == AdviceCode.CHECKPOINT
    assert data["advice"][0]["reason"]["text"]
    assert [device["device"] for device in data["devices"]] == ["cuda:0"]


def test_the_table_has_kinds_lines_modules_and_growth() -> None:
    figures = memory.figures(STUDY)
    sections = [row[1] for row in figures.rows]
    assert sections == ["kind", "kind", "line", "line", "module", "growth"]
    assert {len(row) for row in figures.rows} == {len(figures.columns)}


def test_an_empty_study_says_so_in_every_format() -> None:
    empty = MemoryStudy(source="x.pickle", origin="snapshot")
    for ending in (".json", ".md", ".csv", ".html"):
        assert formatted(memory.memory_report(empty), ending)
    assert "empty" in at_terminal(memory.document(empty))


def test_a_shortage_comes_first() -> None:
    study = replace(STUDY, devices=(replace(DEVICE, shortages=(SHORT,)),))
    assert memory.headline(study).startswith("out of memory for 1 GiB with 1 MiB of 8 GiB free")
    text = at_terminal(memory.document(study))
    assert "512 MiB at most" in text


def test_several_devices_have_a_table() -> None:
    study = replace(STUDY, devices=(DEVICE, replace(DEVICE, device="cuda:1")))
    assert any(t.columns[0].name == "device" for t in tables(memory.document(study)))


def nasty() -> MemoryStudy:
    place = Place(f"/x/{NASTY}.py", 3, NASTY)
    owner = Owner(place=place, kind=MemoryKind.ACTIVATION, bytes=GIB, blocks=1, module=NASTY)
    stack = StackMemory(
        parent=-1, function=NASTY, file=NASTY, line=1, is_own=True, bytes=GIB, blocks=1
    )
    peak = replace(DEVICE.peak, owners=(owner,), by_module={NASTY: GIB}, stacks=(stack,))
    grown = (replace(DEVICE.growth[0], place=place, held_by=(NASTY,)),)
    return replace(
        STUDY, source=f"/tmp/{NASTY}", devices=(replace(DEVICE, peak=peak, growth=grown),)
    )


def test_names_are_text_in_every_format() -> None:
    report = memory.memory_report(nasty(), full=True)
    shown = at_terminal(report.document(), full=True)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    page = formatted(report, ".html", full=True)
    assert "<img src=x" not in bare(page)
    assert "</script><img" not in page
    assert json.loads(formatted(report, ".json"))["peak"]["by_module"][0]["module"] == NASTY


def compared(change: int) -> MemoryComparison:
    peak = MemoryChange(of="total", name="peak", before_bytes=GIB, after_bytes=GIB + change)
    line = MemoryChange(
        of="line", name="", place=LINE, kind=MemoryKind.ACTIVATION, before_bytes=0,
        after_bytes=change,
    )  # fmt: skip
    return MemoryComparison(
        before=STUDY, after=STUDY, before_device="cuda:0", after_device="cuda:0",
        changes=(peak, line),
    )  # fmt: skip


def test_a_comparison_says_how_the_peak_changed_and_where() -> None:
    assert memory_comparison.headline(compared(GIB)) == (
        "the peak needs 1 GiB (100 %) more: 1 GiB → 2 GiB; most of it user/net.py:75 forward, "
        "+1 GiB"
    )
    assert "the same" in memory_comparison.headline(compared(0))


def test_a_comparison_is_shown_in_every_format() -> None:
    report = memory_comparison.memory_comparison_report(compared(GIB))
    for ending in (".md", ".csv", ".html"):
        assert "net.py" in formatted(report, ending)
    changes = json.loads(formatted(report, ".json"))["changes"]
    assert [change["change_bytes"] for change in changes] == [GIB, GIB]
    assert "net.py:75" in at_terminal(report.document())
