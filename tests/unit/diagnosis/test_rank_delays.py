"""The late rank by the steps and the traces of a run, together and each alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.build_case import case_of_trace
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.diagnosis.findings import findings
from ridgeline.diagnosis.rank_delays import AcrossRanks, of_traces
from ridgeline.diagnosis.recorded_run import Attempts
from ridgeline.diagnosis.rules.convolutions import layout_transposes
from ridgeline.records.run import DeviceSeen, Phase, Step
from ridgeline.trace.study import study
from ridgeline.trace.window import window_of
from tests.unit.diagnosis import made_up_run_directory as recorded
from tests.unit.diagnosis.made_up_steps import noise, step
from tests.unit.diagnosis.rules.made_up_kernels import case as case_of_layouts
from tests.unit.diagnosis.rules.test_layout_transposes import convolution, turning
from tests.unit.trace.traces_made import HOST, WORKER, Made

EARLY: dict[Phase, float] = {"input": 1.0, "forward": 5.0, "backward": 40.0}
LATE: dict[Phase, float] = {"input": 31.0, "forward": 5.0, "backward": 10.0}
"""Milliseconds: what the late rank reads longer, the other one waits in its backward."""


def steps(phases: Mapping[Phase, float], seed: int = 0, count: int = 30) -> list[Step]:
    factors = noise(count, seed, 0.05)
    return [
        step(i, {p: ms * (f if p == "forward" else 1) for p, ms in phases.items()})
        for i, f in enumerate(factors)
    ]


def judged(
    rank_steps: Mapping[int, Sequence[Step]], folder: Path | None = None, made: Sequence[Made] = ()
) -> AcrossRanks:
    attempts = Attempts()
    traces = [one.trace(folder, f"{n}.json") for n, one in enumerate(made)] if folder else []
    windows = [window_of(trace, "all") for trace in traces]
    found = of_traces(traces, windows, attempts, rank_steps=rank_steps)
    assert not attempts.failures
    return found


def traced(number: int, *, waits_ms: float, own_ms: float, function: str = "") -> Made:
    """Three steps whose backward works `own_ms` in a function, then exchanges for `waits_ms`."""
    made = Made(distributedInfo={"rank": number, "backend": "gloo", "world_size": 2})
    made.frame("train.py(10): main", 0, 300_000, **{"Python id": 1})
    for one in range(3):
        at = 1_000 + one * 80_000
        made.span(f"ProfilerStep#{one}", at, 79_000)
        made.op("aten::mm", at, 5_000)
        length = 1_000 * (own_ms + waits_ms)
        ids = {"Python id": 10 + 3 * one, "Python parent id": 1}
        made.frame("torch/autograd/__init__.py(200): backward", at + 5_000, length, **ids)
        if function:
            ids = {"Python id": 11 + 3 * one, "Python parent id": 10 + 3 * one}
            made.frame(f"train.py(3): {function}", at + 5_000, 1_000 * own_ms, **ids)
        made.op("aten::mm", at + 5_000, 1_000)
        made.op("c10d::allreduce_", at + 5_000 + 1_000 * own_ms, 10)
        made.span("gloo:all_reduce", at + 5_000 + 1_000 * own_ms, 1_000 * waits_ms, tid=WORKER)
    return made


def test_timed_steps_alone_name_the_rank_and_its_phase() -> None:
    found = judged({0: steps(EARLY), 1: steps(LATE, seed=1)})
    assert found.steps_compared
    assert found.late is not None
    assert (found.late.rank, found.late.phase, found.late.basis) == (1, "input", "steps")
    assert found.late.phase_ns == pytest.approx(30e6, rel=0.05)


def test_equal_ranks_are_compared_and_none_is_late() -> None:
    found = judged({0: steps(EARLY), 1: steps(EARLY, seed=1)})
    assert found.steps_compared
    assert found.late is None


def test_two_late_ranks_of_different_kinds_are_both_named() -> None:
    """One reads longer, another computes longer: the others wait for both at once, so that without
    either of them the steps would hardly be shorter."""
    reads: dict[Phase, float] = {"input": 31.0, "forward": 5.0, "backward": 12.0}
    computes: dict[Phase, float] = {"input": 1.0, "forward": 34.0, "backward": 12.0}
    found = judged({
        0: steps(EARLY), 1: steps(reads, seed=1), 2: steps(EARLY, seed=2),
        3: steps(computes, seed=3),
    })  # fmt: skip
    assert found.late is not None
    assert found.late.beside is not None
    named = {(one.rank, one.phase) for one in (found.late, found.late.beside)}
    assert named == {(1, "input"), (3, "forward")}


def test_a_second_late_rank_is_named_beside_one_that_is_later_still() -> None:
    """The later rank alone shows only the part of its lateness that the other one does not hide."""
    sleeps: dict[Phase, float] = {"input": 61.0, "forward": 5.0, "backward": 12.0}
    computes: dict[Phase, float] = {"input": 1.0, "forward": 34.0, "backward": 43.0}
    usual: dict[Phase, float] = {"input": 1.0, "forward": 5.0, "backward": 72.0}
    found = judged({
        0: steps(usual), 1: steps(sleeps, seed=1), 2: steps(usual, seed=2),
        3: steps(computes, seed=3),
    })  # fmt: skip
    assert found.late is not None
    assert (found.late.rank, found.late.phase) == (1, "input")
    assert found.late.late_ns == pytest.approx(60e6, rel=0.1)
    assert found.late.beside is not None
    assert (found.late.beside.rank, found.late.beside.phase) == (3, "forward")


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_noise_names_no_second_rank_beside_a_late_one(ranks: int) -> None:
    late: dict[Phase, float] = {"input": 31.0, "forward": 5.0, "backward": 12.0}
    for seed in range(20):
        early = {n: steps(EARLY, seed=100 * seed + n) for n in range(ranks) if n != 1}
        found = judged({**early, 1: steps(late, seed=100 * seed + 1)})
        assert found.late is not None
        assert (found.late.rank, found.late.beside) == (1, None)


def test_two_late_ranks_that_take_turns_are_both_named() -> None:
    usual, slow = 5.0, 40.0
    turns = [
        [step(i, {"forward": slow if i % 2 == odd else usual, "backward": 20.0}) for i in range(30)]
        for odd in (0, 1)
    ]
    found = judged({0: steps(EARLY), 1: turns[0], 2: turns[1], 3: steps(EARLY, seed=3)})
    assert found.late is not None
    assert found.late.beside is not None
    assert {found.late.rank, found.late.beside.rank} == {1, 2}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_noise_names_no_pair(ranks: int) -> None:
    for seed in range(20):
        found = judged({n: steps(EARLY, seed=100 * seed + n) for n in range(ranks)})
        assert found.late is None


def test_steps_on_a_device_are_not_compared_by_the_hosts_phases() -> None:
    on_device = [step(i, EARLY, device=True) for i in range(30)]
    assert not judged({0: on_device, 1: on_device}).steps_compared


def test_lateness_inside_a_phase_that_waits_is_found_in_the_traces(tmp_path: Path) -> None:
    equal: dict[Phase, float] = {"forward": 5.0, "backward": 40.0}
    made = [
        traced(0, waits_ms=50, own_ms=2),
        traced(1, waits_ms=2, own_ms=50, function="watch"),
    ]
    found = judged({0: steps(equal), 1: steps(equal, seed=1)}, tmp_path, made)
    assert found.late is not None
    assert (found.late.rank, found.late.phase) == (1, "backward")
    assert found.late.basis == "traced steps"
    assert found.late.cause is not None
    assert found.late.cause.place.function == "watch"
    assert found.late.late_ns < 45e6  # of the timed step, not of the traced one


def test_a_few_traced_steps_without_a_function_name_no_late_rank(tmp_path: Path) -> None:
    equal: dict[Phase, float] = {"forward": 5.0, "backward": 40.0}
    made = [traced(0, waits_ms=50, own_ms=2), traced(1, waits_ms=2, own_ms=50)]
    found = judged({0: steps(equal), 1: steps(equal, seed=1)}, tmp_path, made)
    assert found.steps_compared
    assert found.late is None


@pytest.mark.parametrize(("slower_ms", "accused"), [(6.0, False), (30.0, True)])
def test_a_rank_that_is_mostly_a_little_slower_may_be_so_by_chance(
    slower_ms: float, accused: bool
) -> None:
    """Slower in three steps of four, faster in the fourth: as on a machine with many programs."""
    even: dict[Phase, float] = {"forward": 25.0, "backward": 60.0}
    unsteady = [
        step(i, {**even, "forward": 25.0 + (slower_ms if i % 4 else -slower_ms / 1.5)}, ms=90)
        for i in range(40)
    ]
    found = judged({0: [step(i, even, ms=90) for i in range(40)], 1: unsteady})
    assert (found.late is not None) == accused


PRODUCT = "ampere_sgemm_128x64"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def rank(number: int, *, ahead: int = 0, products: int = 1) -> Made:
    """Four collectives and some products of 100 µs, by a clock that may be ahead of others."""
    made = Made(distributedInfo={"rank": number, "backend": "nccl"})
    for call in range(4 + products):
        start = 1_000 + ahead + call * 110
        op, name = ("c10d::allreduce_", REDUCE) if call < 4 else ("aten::mm", PRODUCT)
        made.op(op, start - 6, 7, HOST)
        made.launch(name, start - 5, start, 100, call + 1, HOST)
    return made


def case_of(made: list[Made], folder: Path) -> Case:
    attempts = Attempts()
    found, traces = study(
        [one.write(folder, f"{i}.json") for i, one in enumerate(made)], cache=False
    )[:2]
    case = case_of_trace(found, traces, attempts)
    assert not attempts.failures
    return case


def test_kernels_of_four_ranks_are_not_added_up(tmp_path: Path) -> None:
    case = case_of([rank(number, products=2) for number in range(4)], tmp_path)
    assert case.study is not None
    of_all = {row.name: row.count for row in case.study.kernels}
    assert of_all[PRODUCT] == 8
    (one,) = [row for row in case.kernels if row.name == PRODUCT]
    assert (one.count, one.total_ns) == (2, 200_000)


def test_a_trace_alone_has_its_own(tmp_path: Path) -> None:
    case = case_of([rank(0)], tmp_path)
    assert case.study is not None
    assert case.kernels == case.study.kernels


@pytest.mark.parametrize("ahead", [0, 50_000, 10_000_000])
def test_a_longer_rank_with_another_clock_does_not_hide_the_first(
    ahead: int, tmp_path: Path
) -> None:
    case = case_of([rank(0), rank(1, ahead=ahead, products=3)], tmp_path)
    assert [row.count for row in case.kernels if row.name == PRODUCT] == [1]
    assert any(site.op == "aten::mm" for site in case.sites.ops)


def test_a_rule_charges_the_ranks_own_kernels() -> None:
    one = case_of_layouts(convolution(), kernels=(turning(10),))
    job = replace(one, study=one.study and replace(one.study, kernels=(turning(40),)))
    assert [f.share_pct for f in layout_transposes(job)] == [pytest.approx(40)]
    own = replace(job, rank_kernels=(turning(10),))
    assert [f.share_pct for f in layout_transposes(own)] == [pytest.approx(10)]


def test_traces_of_a_run_say_what_the_run_says_of_its_ranks(tmp_path: Path) -> None:
    cpu = DeviceSeen(kind="cpu")
    run = recorded.directory(
        tmp_path, run=recorded.run_file(ranks=2), captured=recorded.capture(device=cpu, world=2),
        stepped=[step(i, {"forward": 5, "backward": 80}) for i in range(40)],
    )  # fmt: skip
    other = recorded.capture(rank=1, world=2, device=cpu)
    run.capture_file(1).write_bytes(msgspec.json.encode(other))
    slow = [step(i, {"input": 70, "forward": 5, "backward": 10}) for i in range(40)]
    recorded.lines(run.steps_file(1), slow)
    for number in range(2):
        made = Made(distributedInfo={"rank": number, "backend": "gloo", "world_size": 2})
        made.span("ProfilerStep#0", 0, 1_000).op("aten::mm", 100, 400)
        made.frame("torch/autograd/__init__.py(200): backward", 550, 400)
        made.span("gloo:all_reduce", 600, 300, tid=WORKER)
        made.write(run.path, f"trace-rank{number}.json.gz")
    concluded = concluded_case(run)[1]
    found, traces = study([run.trace_file(n) for n in range(2)], cache=False)[:2]
    alone = case_of_trace(found, traces, Attempts())
    assert concluded is not None
    assert alone.late is not None
    assert alone.late.rank == 1
    assert alone.late == concluded.late
    (one,), (other_one,) = [
        [f for f in findings(case, Attempts()).findings if f.rule == "late-rank"]
        for case in (concluded, alone)
    ]
    assert (one.share_pct, one.gain_bound) == (other_one.share_pct, other_one.gain_bound)
