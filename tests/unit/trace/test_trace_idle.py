"""Every idle nanosecond gets a cause: against the slow reference, and case by case."""

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow_idle import SlowIdle, in_ns
from traces_made import AUTOGRAD, HOST, Made

from ridgeline.records.facts import Trust
from ridgeline.records.trace import Idle
from ridgeline.trace.analyses.idle import CAUSES, all_gaps, idle, idle_gaps
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import steps_of, window_of

OPS = ("aten::mm", "aten::add", "aten::to", "aten::copy_", "aten::item", "gloo:all_reduce")
SPANS = ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "my span")
CALLS = ("cudaStreamSynchronize", "cudaMalloc", "cudaEventRecord", "cudaModuleLoad")
COPIES = ("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)")


def found(trace: Trace) -> Idle:
    links = Links(trace)
    gaps = idle_gaps(trace, links, window_of(trace))
    return idle(trace, links, gaps, steps_of(trace), Trust())


def by_cause(result: Idle) -> dict[str, int]:
    return {cause.cause: cause.ns for cause in result.causes}


def nest(draw: st.DrawFn, made: Made, tid: int, low: int, high: int, depth: int) -> None:
    """Operators, spans and calls on one thread, properly nested."""
    at = low
    while high - at > 2 and draw(st.integers(0, 3)):
        start = draw(st.integers(at, high - 1))
        dur = draw(st.integers(1, high - start))
        kind = draw(st.sampled_from(("op", "span", "call")))
        if kind == "call" or not depth:
            made.call(draw(st.sampled_from(CALLS)), start, dur, 10_000 + len(made.events), tid)
        elif kind == "span":
            made.span(draw(st.sampled_from(SPANS)), start, dur, tid)
        else:
            made.op(draw(st.sampled_from(OPS)), start, dur, tid)
        if kind != "call" and depth:
            nest(draw, made, tid, start, start + dur, depth - 1)
        at = start + dur


@st.composite
def traces(draw: st.DrawFn) -> Made:
    made = Made()
    for tid in (HOST, AUTOGRAD):
        nest(draw, made, tid, 0, draw(st.integers(0, 900)), 2)
    for number in range(1, draw(st.integers(2, 7))):
        start = draw(st.integers(0, 900))
        if draw(st.integers(0, 4)):
            name = draw(st.sampled_from(("cudaLaunchKernel", "cudaMemcpyAsync")))
            at = draw(st.integers(0, max(start, 1)))
            made.call(
                name, at, draw(st.integers(1, 20)), number, draw(st.sampled_from((HOST, AUTOGRAD)))
            )
        cat, kernel = draw(st.sampled_from(
            [("kernel", "gemm"), ("kernel", "add"), *(("gpu_memcpy", c) for c in COPIES)]
        ))  # fmt: skip
        made.kernel(kernel, start, draw(st.integers(1, 120)), number, cat=cat)
    return made


@given(traces())
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
def test_causes_equal_those_found_piece_by_piece(tmp_path: Path, made: Made) -> None:
    result = found(made.trace(tmp_path))
    slow = SlowIdle(in_ns(made.events))
    assert by_cause(result) == dict(slow.causes())
    assert result.total_ns == sum(b - a for a, b in slow.gaps())


def test_a_dataloader_that_keeps_the_device_waiting_is_input(tmp_path: Path) -> None:
    made = Made()
    made.frame("train.py(12): main", 0, 2000)
    made.launch("gemm", 10, 20, 100, 1)
    made.span(SPANS[0], 130, 1000)
    made.frame("data.py(41): __getitem__", 200, 800)
    made.launch("gemm", 1150, 1160, 100, 2)
    result = found(made.trace(tmp_path))
    cause = result.causes[0]
    assert (cause.cause, cause.ns) == ("input", 1_000_000)
    assert (cause.places[0].file, cause.places[0].line) == ("data.py", 41)
    assert cause.says == SPANS[0]
    assert result.top[0].before == result.top[0].after == "gemm"


def test_what_follows_a_wait_for_the_device_is_the_waits_price(tmp_path: Path) -> None:
    made = Made()
    made.frame("train.py(63): step", 0, 2000)
    made.launch("gemm", 10, 20, 100, 1)
    made.op("aten::item", 40, 90).call("cudaStreamSynchronize", 50, 75, 2)
    made.op("aten::add", 150, 40).launch("add", 160, 170, 10, 3)
    result = found(made.trace(tmp_path))
    assert by_cause(result) == {"synchronisation": 50_000}
    assert result.top[0].place is not None
    assert result.top[0].place.line == 63


def test_work_launched_early_leaves_only_the_devices_own_pauses(tmp_path: Path) -> None:
    made = Made()
    made.launch("one", 0, 100, 50, 1).launch("two", 10, 152, 50, 2)
    assert by_cause(found(made.trace(tmp_path))) == {"between kernels": 2_000}


def test_long_python_is_the_programs_and_short_python_the_launches(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::a", 0, 10).launch("a", 1, 10, 20, 1)
    made.op("aten::b", 100, 10).launch("b", 101, 110, 20, 2)  # 90 µs of Python between
    made.op("aten::c", 1000, 10).launch("c", 1001, 1010, 20, 3)  # 890 µs
    # until each launch began: 71 µs, all launching; 871 µs, of which 870 no operator covers
    assert by_cause(found(made.trace(tmp_path))) == {
        "launch-bound": 71_000 + 9_000 + 1_000 + 9_000,
        "other host": 870_000,
    }


def test_a_gap_at_a_backward_thread_sees_what_the_main_thread_did(tmp_path: Path) -> None:
    made = Made()
    made.launch("forward", 0, 10, 20, 1)
    made.call("cudaMalloc", 40, 500, 9)
    made.op("autograd::engine::evaluate_function: AddmmBackward0", 600, 50, AUTOGRAD)
    made.launch("backward", 610, 620, 20, 2, AUTOGRAD)
    assert by_cause(found(made.trace(tmp_path)))["allocator"] == 500_000


def test_backwards_thread_has_no_python_so_the_line_is_the_main_threads(tmp_path: Path) -> None:
    made = Made().frame("train.py(20): train", 0, 900)
    made.launch("one", 10, 20, 20, 1, AUTOGRAD).launch("two", 600, 610, 20, 2, AUTOGRAD)
    place = found(made.trace(tmp_path)).top[0].place
    assert place is not None
    assert (place.file, place.line) == ("train.py", 20)


def test_a_lesser_cause_of_a_gap_has_a_line_of_its_own(tmp_path: Path) -> None:
    made = Made().frame("train.py(3): main", 0, 3000)
    made.launch("gemm", 10, 20, 100, 1)
    made.span(SPANS[0], 130, 1000).frame("data.py(41): __getitem__", 130, 1000)
    made.frame("train.py(9): grow", 1140, 200).call("cudaMalloc", 1150, 180, 7)
    made.launch("gemm", 1360, 1370, 100, 2)
    causes = {cause.cause: cause for cause in found(made.trace(tmp_path)).causes}
    assert causes["allocator"].gaps == 0
    assert causes["allocator"].says == "cudaMalloc"
    assert [(p.line, p.ns) for p in causes["allocator"].places] == [(9, 180_000)]
    assert [p.line for p in causes["input"].places] == [41]


def test_a_trace_without_host_events_has_idle_time_of_unknown_cause(tmp_path: Path) -> None:
    made = Made().kernel("a", 0, 10).kernel("b", 500, 10)
    assert by_cause(found(made.trace(tmp_path))) == {"unknown": 490_000}


def test_every_gap_can_be_listed_and_adds_up(tmp_path: Path) -> None:
    made = Made()
    for i in range(50):
        made.launch("k", 100 * i, 100 * i + 10, 20 + i % 7, i + 1)
    trace = made.trace(tmp_path)
    links = Links(trace)
    gaps = idle_gaps(trace, links, window_of(trace))
    listed = list(all_gaps(trace, links, gaps, steps_of(trace)))
    assert len(listed) == 49
    assert sum(gap.dur_ns for gap in listed) == found(trace).total_ns
    assert all(np.array_equal(g.ns.sum(axis=1), g.dur) for g in gaps)
    assert gaps[0].ns.shape[1] == len(CAUSES)


def test_no_device_work_is_said_and_not_counted_as_idle(tmp_path: Path) -> None:
    result = found(Made().op("aten::mm", 0, 10).trace(tmp_path))
    assert result.total_ns is None
    assert "no device work" in result.trust.why


def test_two_devices_idle_each_by_themselves(tmp_path: Path) -> None:
    made = Made()
    made.kernel("a", 0, 100, device=0).kernel("b", 50, 10, device=1).kernel("c", 90, 10, device=1)
    result = found(made.trace(tmp_path))
    assert result.total_ns == (50 + 30) * 1000
    assert {gap.device for gap in result.top} == {1}
