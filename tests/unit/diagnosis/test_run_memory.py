"""The memory of a run: joined from the traced steps, a snapshot, the live program and the end."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import held_by
from ridgeline.diagnosis.memory_use import memory_use
from ridgeline.diagnosis.recorded_run import FileNames, RunRead
from ridgeline.diagnosis.rules.kept_graphs import graph_kept, memory_leak
from ridgeline.diagnosis.run_memory import brief, run_memory
from ridgeline.records.facts import Place
from ridgeline.records.finding import Findings
from ridgeline.records.memory import AdviceCode, MemoryKind, MemoryStudy
from ridgeline.records.run import Capture, DeviceSeen, OutOfMemory, ProcessSample, Telemetry, Window
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.step_memory import HeldTensors, LineRange, LiveTensors, TracedAllocations
from tests.unit.diagnosis.rules.made_up_memory import (
    FILE,
    GIB,
    KEEPS_GRAPH,
    KEEPS_NONE,
    MIB,
    capture,
    case,
    growing,
)
from tests.unit.memory.simulated_allocator import Gpt, SimulatedAllocator, snapshot, trained, write
from tests.unit.memory.simulated_allocator import OutOfMemory as SimulatedOutOfMemory
from tests.unit.memory.test_traced_steps import (
    FORWARD,
    MODEL,
    SPANS,
    STARTS,
    made_up,
    one_step,
)

HELD = HeldTensors(
    holder="list", name="history", owner="local", owner_name="main", file=FILE, line=5,
    per_step=1.0, entries=40, bytes=320 * MIB, bytes_per_step=8.0 * MIB, steps=8,
)  # fmt: skip


def on_cpu(**changed: Any) -> Capture:
    windows = (Window(kind="traced", first_step=13, steps=3),)
    return capture(**{"device": DeviceSeen(), "windows": windows, **changed})


def studied(
    folder: Path,
    made: Case,
    found: TracedAllocations | None = None,
    findings: Findings | None = None,
) -> MemoryStudy | None:
    directory = RunDirectory(folder)
    if found is not None:
        directory.allocations_file(0).write_bytes(msgspec.msgpack.encode(found))
    assert made.run is not None
    read = RunRead(run=made.run, capture=made.capture, steps=made.steps)
    names = FileNames(made.run, made.capture)
    return run_memory(directory, read, made, findings or Findings(), names)


def events(device: str = "cpu", **fields: Any) -> TracedAllocations:
    rows = [event for at in STARTS for event in one_step(at)]
    return made_up(rows, device, spans=SPANS, step_starts_ns=STARTS, **fields)


def codes(study: MemoryStudy | None) -> list[str]:
    assert study is not None
    return [way.reason.code for way in study.devices[0].advice]


def full(**changed: Any) -> OutOfMemory:
    made = OutOfMemory(
        asked_bytes=64 * MIB, free_bytes=MIB, total_bytes=4 * GIB, on="host",
        allocated_bytes=4 * GIB - MIB, step=30, phase="forward", place=f"train.py:{10 + FORWARD}",
    )  # fmt: skip
    return replace(made, **changed)


def test_the_traced_steps_are_numbered_as_the_programs(tmp_path: Path) -> None:
    study = studied(tmp_path, case(gpu=False, capture=on_cpu()), events())
    assert study is not None
    assert (study.origin, study.steps) == ("trace", 3)
    assert study.devices[0].peak.step in (13, 14, 15)
    assert study.devices[0].advice == ()  # there is room for it


def test_nothing_is_made_up_for_a_run_of_which_nothing_is_known(tmp_path: Path) -> None:
    assert studied(tmp_path, case(gpu=False, capture=on_cpu())) is None


def test_an_operator_between_two_calls_is_found_in_the_source(tmp_path: Path) -> None:
    text = "def main(x):\n    h = f(x)\n    h += 1  # here\n    return g(h)\n"
    found = replace(events(), places=tuple(LineRange(FILE, 2, 4, "main") for _ in range(6)))
    study = studied(tmp_path, case(text, gpu=False, capture=on_cpu()), found)
    assert study is not None
    assert {one.place.line for one in study.devices[0].lines if one.place} == {3}


def test_growth_has_the_line_of_the_trace_and_the_name_from_the_live_program(
    tmp_path: Path,
) -> None:
    kept = [(at + 50, 1000 + at, 8 * MIB, FORWARD) for at in STARTS]
    rows = sorted([event for at in STARTS for event in one_step(at)] + kept)
    found = made_up(rows, "cpu", spans=SPANS, step_starts_ns=STARTS)
    made = growing(KEEPS_NONE, gpu=False, capture=on_cpu(held=(HELD,)))
    made = replace(made, memory=replace(made.memory, host_growth_exact=True))
    study = studied(tmp_path, made, found)
    assert study is not None
    (grown,) = study.devices[0].growth
    assert grown.bytes_per_step == 8 * MIB
    assert grown.place is not None
    assert grown.place.line == 10 + FORWARD
    assert grown.held_by == ("list `history` of train.py:main",)


def test_blocks_that_outlive_the_traced_steps_alone_are_no_growth(tmp_path: Path) -> None:
    kept = [(at + 50, 1000 + at, 8 * MIB, FORWARD) for at in STARTS]
    rows = sorted([event for at in STARTS for event in one_step(at)] + kept)
    found = made_up(rows, "cpu", spans=SPANS, step_starts_ns=STARTS)
    study = studied(tmp_path, case(gpu=False, capture=on_cpu()), found)
    assert study is not None
    assert study.devices[0].growth == ()


class TestAfterAShortage:
    def test_a_request_like_those_of_the_trace_is_told_from_a_larger_one(
        self, tmp_path: Path
    ) -> None:
        made = case(gpu=False, capture=on_cpu(out_of_memory=full(asked_bytes=8 * MIB)))
        study = studied(tmp_path, made, events())
        assert study is not None
        (shortage,) = study.devices[0].shortages
        assert shortage.usual_bytes == 8 * MIB
        assert not shortage.fragmented
        halved = _saved(study, AdviceCode.SMALLER_BATCH)
        larger = case(gpu=False, capture=on_cpu(out_of_memory=full(asked_bytes=64 * MIB)))
        assert _saved(studied(tmp_path, larger), AdviceCode.SMALLER_BATCH) == 8 * halved

    def test_ways_that_cost_no_time_come_first_and_each_applies(self, tmp_path: Path) -> None:
        found = events(before=tuple(replace(one, device="cpu") for one in MODEL))
        made = case(gpu=False, capture=on_cpu(out_of_memory=full()))
        study = studied(tmp_path, made, found)
        assert study is not None
        costs = [way.slowdown or 1.01 for way in study.devices[0].advice]
        assert costs == sorted(costs)
        assert AdviceCode.SMALLER_BATCH.value in codes(study)
        assert AdviceCode.NO_GRADIENTS.value not in codes(study)  # it trains
        assert AdviceCode.SMALLER_OPTIMIZER_STATE.value not in codes(study)  # there is none

    def test_what_grew_is_the_first_way(self, tmp_path: Path) -> None:
        made = growing(KEEPS_NONE, gpu=False, capture=on_cpu(out_of_memory=full(), held=(HELD,)))
        made = replace(made, memory=replace(made.memory, host_growth_exact=True))
        study = studied(tmp_path, made, events())
        assert codes(study)[0] == AdviceCode.STOP_GROWTH.value

    def test_a_program_that_dies_before_a_step_tells_its_live_tensors(self, tmp_path: Path) -> None:
        live = (
            LiveTensors(kind=MemoryKind.ACTIVATION, device="cpu", bytes=3 * GIB, tensors=8),
            LiveTensors(kind=MemoryKind.PARAMETER, device="cpu", bytes=MIB, tensors=4),
            LiveTensors(kind=MemoryKind.PARAMETER, device="meta", bytes=GIB, tensors=4),
        )
        short = on_cpu(out_of_memory=full(live=live, step=0), windows=(), stepping="")
        study = studied(tmp_path, case(gpu=False, capture=short))
        assert study is not None
        assert study.origin == "shortage"
        assert study.devices[0].peak.by_kind == {
            MemoryKind.ACTIVATION: 3 * GIB, MemoryKind.PARAMETER: MIB,
        }  # fmt: skip
        assert AdviceCode.SMALLER_BATCH.value in codes(study)

    def test_on_a_gpu_free_blocks_that_would_do_in_one_piece_are_fragments(
        self, tmp_path: Path
    ) -> None:
        short = full(
            on="device", asked_bytes=3 * GIB, free_bytes=GIB, total_bytes=140 * GIB,
            allocated_bytes=100 * GIB, reserved_bytes=110 * GIB,
            alive=((f"{FILE}:6", 90 * GIB, 12), ("", 10 * GIB, 3)),
        )  # fmt: skip
        study = studied(tmp_path, case(capture=capture(out_of_memory=short)))
        assert study is not None
        device = study.devices[0]
        assert device.device == "cuda:0"
        assert device.shortages[0].fragmented
        assert device.peak.owners[0].place == Place("train.py", 6)
        full_up = replace(short, reserved_bytes=101 * GIB)
        other = studied(tmp_path, case(capture=capture(out_of_memory=full_up)))
        assert other is not None
        assert not other.devices[0].shortages[0].fragmented


def _saved(study: MemoryStudy | None, code: AdviceCode) -> int:
    assert study is not None
    return next(w.saves_bytes for w in study.devices[0].advice if w.reason.code == code.value)


def test_the_brief_form_has_no_levels_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    study = studied(tmp_path, case(gpu=False, capture=on_cpu()), events())
    assert study is not None
    assert study.devices[0].levels.at_ns
    assert brief(study).devices[0].levels.at_ns == ()
    assert brief(study).devices[0].lines == study.devices[0].lines


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (HELD, "list `history` of train.py:main"),
        (replace(HELD, owner="attribute", owner_name="Net"), "list `history` of Net"),
        (replace(HELD, owner="global", owner_name="__main__"), "list `history` of train.py"),
        (replace(HELD, owner="closure", owner_name="make.<locals>.f"),
         "list `history` in the closure train.py:make.<locals>.f"),
        (replace(HELD, kind="graph", holder="tensor", name="total"),
         "the graph behind `total` of train.py:main"),
        (replace(HELD, name=""), "list"),
    ],
)  # fmt: skip
def test_a_holder_is_named_as_the_program_reaches_it(held: HeldTensors, text: str) -> None:
    assert held_by(held) == text


def test_a_holder_that_was_seen_settles_which_line_keeps_memory() -> None:
    seen = replace(HELD, name="cache", owner="attribute", owner_name="Net")
    made = growing(KEEPS_GRAPH, capture=capture(held=(seen,)))
    assert list(graph_kept(made)) == []  # the graph in `history` was not what grew
    (finding,) = memory_leak(made)
    assert "`cache`" in finding.claim
    confirmed = growing(
        KEEPS_GRAPH, unrun=5.0, capture=capture(held=(replace(HELD, kind="graph"),))
    )
    (kept,) = graph_kept(confirmed)
    assert kept.line == 9
    assert [e.text for e in kept.evidence if e.what == "held by"] == [
        "list `history` of train.py:main: 1 entries a step"
    ]


def test_processes_are_counted_by_role_when_all_together_had_most() -> None:
    def sample(at: int, sizes: list[int], pss: int = 0) -> Telemetry:
        own, *others = sizes
        return Telemetry(at_ns=at, processes=(
            ProcessSample(pid=1, rss_bytes=own, pss_bytes=pss),
            *(ProcessSample(pid=2 + n, worker=True, loader=n < 2, rss_bytes=size, pss_bytes=pss)
              for n, size in enumerate(others)),
        ))  # fmt: skip

    telemetry = [
        sample(0, [300], pss=300), sample(1, [300, 200, 200, 50], pss=90),
        sample(2, [310, 220, 220, 50]), sample(3, [310, 100], pss=7),
    ]  # fmt: skip
    roles = memory_use(Capture(), (), telemetry).roles
    assert [(r.role, r.processes, r.rss_bytes, r.pss_bytes) for r in roles] == [
        ("program", 1, 310, 90), ("loader workers", 2, 440, 180), ("other processes", 1, 50, 90),
    ]  # fmt: skip
    assert memory_use(Capture(), (), telemetry[:1]).roles == ()
    undivided = memory_use(Capture(), (), [sample(0, [300, 20])]).roles
    assert [r.pss_bytes for r in undivided] == [None, None]


class TestOnAGpu:
    """The run's own snapshots of the allocator, here of a simulated one."""

    def test_a_snapshot_of_the_failure_tells_the_request_and_the_live_set(
        self, tmp_path: Path
    ) -> None:
        allocator = SimulatedAllocator(0, total_bytes=300 * MIB)
        gpt = Gpt(allocator)
        gpt.build()
        with pytest.raises(SimulatedOutOfMemory):
            gpt.train(3)
        write(tmp_path / "oom-rank0.pickle", snapshot(allocator))
        short = full(
            on="device", snapshot="oom-rank0.pickle", total_bytes=400 * MIB, free_bytes=10 * MIB,
            reserved_bytes=300 * MIB, allocated_bytes=290 * MIB,
        )  # fmt: skip
        study = studied(tmp_path, case(capture=capture(out_of_memory=short)))
        assert study is not None
        device = study.devices[0]
        assert study.origin == "snapshot"
        assert device.shortages[-1].requested_bytes > 0
        assert device.outside_torch_bytes == 90 * MIB
        assert device.peak.by_kind[MemoryKind.ACTIVATION] > 0
        assert device.advice

    def test_the_snapshot_of_the_first_steps_takes_the_lines_of_the_traced_ones(
        self, tmp_path: Path
    ) -> None:
        write(tmp_path / "memory-rank0.pickle", snapshot(trained(3).memory))
        made = case(capture=capture(memory_file="memory-rank0.pickle"))
        study = studied(tmp_path, made, events("cuda:0"))
        assert study is not None
        device = study.devices[0]
        assert (study.origin, device.device) == ("snapshot", "cuda:0")
        assert device.fragmentation is not None
        assert {one.place.line for one in device.lines if one.place} >= {10 + FORWARD}

    def test_a_damaged_snapshot_costs_its_own_figures_alone(self, tmp_path: Path) -> None:
        (tmp_path / "memory-rank0.pickle").write_bytes(b"\x80\x04 no snapshot")
        made = case(capture=capture(memory_file="memory-rank0.pickle"))
        study = studied(tmp_path, made, events("cuda:0"))
        assert study is not None
        assert study.origin == "trace"
