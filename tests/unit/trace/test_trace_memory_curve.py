"""Memory curves: exact peaks, bounded size, honest about what is not known."""

from pathlib import Path
from typing import Any

from traces_made import HOST, Made

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.allocations import memory_curves

WINDOW = Window(start_ns=0, end_ns=1_000_000, basis="test")


def instant(made: Made, ts: float, **args: Any) -> Made:
    made.events.append(
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100,
         "tid": HOST, "ts": ts, "args": args}
    )  # fmt: skip
    return made


def test_the_peak_its_moment_and_its_step(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#4", 0, 300).span("ProfilerStep#5", 300, 300)
    made.allocation(100, 50, 1050).allocation(400, 200, 1250).allocation(500, -250, 1000)
    (curve,) = memory_curves(made.trace(tmp_path), WINDOW)
    assert curve.device == "cuda:0"
    assert (curve.peak_bytes, curve.peak_ns, curve.peak_step) == (1250, 400_000, "ProfilerStep#5")
    assert (curve.start_bytes, curve.end_bytes, curve.events) == (1000, 1000, 3)
    assert curve.points[0] == (0, 1000, -1)
    assert curve.points[-1] == (1_000_000, 1000, -1)
    assert curve.note == ""


def test_old_traces_accumulate_and_say_so(tmp_path: Path) -> None:
    made = Made()
    for ts, size in ((10, 100), (20, 300), (30, -350), (40, 10)):
        instant(made, ts, Bytes=size, **{"Device Id": 0, "Device Type": 1})
    (curve,) = memory_curves(made.trace(tmp_path), WINDOW)
    assert (curve.peak_bytes, curve.start_bytes, curve.end_bytes) == (400, 0, 60)
    assert "relative" in curve.note


def test_each_device_has_its_curve_and_the_host_its_own(tmp_path: Path) -> None:
    made = Made().allocation(10, 5, 5).allocation(20, 7, 7, device=1)
    instant(made, 30, Bytes=9, **{"Total Allocated": 9, "Device Id": -1, "Device Type": 0})
    curves = memory_curves(made.trace(tmp_path), WINDOW)
    assert [c.device for c in curves] == ["cuda:1", "cuda:0", "cpu"]


def test_thinning_is_bounded_and_keeps_the_exact_peak(tmp_path: Path) -> None:
    made = Made()
    for index in range(3000):
        level = 9_999 if index == 1717 else 1_000 + index % 7
        made.allocation(100 + index * 0.2, 1, level)
    (curve,) = memory_curves(made.trace(tmp_path), WINDOW, points=50)
    assert len(curve.points) <= 50
    assert (100_000 + 1717 * 200, 9_999, -1) in curve.points
    assert curve.peak_bytes == 9_999
    assert min(level for _, level, _ in curve.points) == 999  # before the first
    assert [at for at, _, _ in curve.points] == sorted(at for at, _, _ in curve.points)


def test_what_came_before_the_window_sets_its_start(tmp_path: Path) -> None:
    made = Made()
    for ts, size in ((10, 100), (500, 30)):
        instant(made, ts, Bytes=size, **{"Device Id": 0, "Device Type": 1})
    late = Window(start_ns=200_000, end_ns=1_000_000, basis="test")
    (curve,) = memory_curves(made.trace(tmp_path), late)
    assert (curve.start_bytes, curve.peak_bytes, curve.events) == (100, 130, 1)


def test_no_events_no_curves(tmp_path: Path) -> None:
    assert memory_curves(Made().trace(tmp_path), WINDOW) == ()
    assert memory_curves(Made().allocation(5000, 1, 1).trace(tmp_path, "b.json"), WINDOW) == ()
