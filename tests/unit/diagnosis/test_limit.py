"""What limits a program: each bound where it must be said, and where it must not."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.limit import winner
from ridgeline.diagnosis.shares import HandFed, Shares, cpu_shares, feeds
from ridgeline.records.run import Capture, DeviceSeen, OutOfMemory, Phase
from ridgeline.records.run_summary import (
    Efficiency,
    MemoryUse,
    PhaseTime,
    StepTimes,
    Telemetered,
)
from ridgeline.records.sites import LateRank
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import (
    CategoryRow,
    Cause,
    TraceStudy,
)
from ridgeline.records.verdict import DecidingCode, DoubtCode, LimitCode, Verdict
from ridgeline.report.reasons import deciding_number, verdict_sentence
from tests.unit.diagnosis.made_up_verdict import bound, capture, codes, limit, study, times, work

GIB = 2**30


def gpu(
    causes: Mapping[Cause, float], *, compute: float = 0.9, memory: float = 0.1, copy: float = 0.0,
    talk: float = 0.0, empty: float = 0.1, loader: bool = False,
) -> Verdict:  # fmt: skip
    """A GPU that idles so, and else works."""
    return limit(
        times({"forward": 1.0}),
        work=work(1 - sum(causes.values()), compute=compute, memory=memory, copy=copy, talk=talk),
        study=study(causes, empty=empty),
        capture=capture(loader=loader),
    )


# ------------------------------------------------------------------------------------- input


def test_a_gpu_that_waits_for_its_loader_is_input_bound() -> None:
    found = limit(
        times({"input": 0.61, "forward": 0.39}),
        work=work(0.3), study=study({"input": 0.5, "launch-bound": 0.2}), capture=capture(),
    )  # fmt: skip
    assert bound(found) == "input-bound"
    assert found.reason.code == LimitCode.GPU_WAITS_FOR_DATA
    assert verdict_sentence(found) == "input-bound: the GPU waits 61 % of each step for data"
    assert found.place == "data.py:41"
    assert found.numbers[0].value == pytest.approx(0.61)
    assert found.numbers[0].source == "measured"
    assert found.trust.confidence == "good"


def test_waits_for_input_come_from_untraced_steps() -> None:
    """Tracing makes a loader without workers slow: 60 % of a traced step, 8 % of a timed one."""
    found = limit(
        times({"input": 0.08, "forward": 0.92}, ms=100.0),
        work=work(0.35, ms=250.0), study=study({"input": 0.6, "launch-bound": 0.05}, ms=250.0),
        capture=capture(),
    )  # fmt: skip
    assert bound(found) == "compute-bound"


def test_a_loader_that_cannot_keep_up_limits_though_the_gpu_mostly_works() -> None:
    found = limit(
        times({"input": 0.24, "forward": 0.76}),
        work=work(0.74), study=study({"input": 0.26}), capture=capture(workers=4),
    )  # fmt: skip
    assert bound(found) == "input-bound"
    (doubt,) = found.trust.doubts
    assert (doubt.code, doubt.facts["bound"]) == (DoubtCode.NEXT_BOUND, "compute-bound")


def test_a_cpu_program_is_input_bound_by_what_its_steps_wait() -> None:
    found = limit(
        times({"input": 0.7, "forward": 0.3}, gpu=False),
        work=work(0.25, gpu=False), capture=capture(gpu=False),
    )  # fmt: skip
    assert bound(found) == "input-bound"
    assert found.reason.code == LimitCode.WAITS_FOR_DATA


def test_a_cpu_program_that_reads_a_fifth_of_its_time_is_not_input_bound() -> None:
    found = limit(
        times({"input": 0.22, "forward": 0.78}, gpu=False),
        work=work(0.75, gpu=False), capture=capture(gpu=False),
    )  # fmt: skip
    assert bound(found) == "compute-bound"


def test_batches_made_by_hand_are_input_by_their_name_and_doubtful() -> None:
    found = limit(
        times({"forward": 0.2, "other": 0.8}, gpu=False), work=work(0.15, gpu=False),
        capture=capture(gpu=False, loader=False),
        fed=HandFed(share=0.75, function="get_batch", place="train.py:9"),
    )  # fmt: skip
    assert bound(found) == "input-bound"
    assert found.place == "train.py:9"
    doubt = found.trust.doubts[0]
    assert (doubt.code, doubt.facts) == (DoubtCode.INPUT_BY_NAME, {"function": "get_batch"})


def test_a_program_with_a_loader_is_not_judged_by_the_names_of_its_functions() -> None:
    found = limit(
        times({"input": 0.02, "forward": 0.2, "other": 0.78}, gpu=False),
        work=work(0.15, gpu=False), capture=capture(gpu=False),
        fed=HandFed(share=0.75, function="prepare_inputs", place="train.py:9"),
    )  # fmt: skip
    assert bound(found) == "launch/overhead-bound"


FEED = "get_batch _get_batch next_batch load_data batches load_image_batch augment read_shard"


@pytest.mark.parametrize("name", FEED.split())
def test_functions_that_make_batches_are_known(name: str) -> None:
    assert feeds(name)


OTHERS = "forward train main train_step update batch_norm loss evaluate generate step <module>"


@pytest.mark.parametrize("name", OTHERS.split())
def test_other_functions_do_not_make_batches(name: str) -> None:
    assert not feeds(name)


# ---------------------------------------------------------------------------------- transfer


def test_copies_that_hold_up_the_gpu_are_transfer_bound() -> None:
    found = gpu({"transfer": 0.3, "launch-bound": 0.1}, copy=0.25)
    assert bound(found) == "transfer-bound"
    assert found.numbers[0].value == pytest.approx(0.55)
    assert found.place == "train.py:63"


def test_a_tenth_in_copies_is_not_transfer_bound() -> None:
    assert bound(gpu({"transfer": 0.05}, copy=0.06)) == "compute-bound"


# ---------------------------------------------------------------------------------- overhead


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("launch-bound", "the host cannot launch work fast enough"),
        ("synchronisation", "the host stops to wait for it"),
        ("other host", "the host is in the program's own code"),
        ("garbage collection", "the host collects garbage"),
    ],
)
def test_a_gpu_that_waits_for_the_host_is_overhead_bound(cause: Cause, words: str) -> None:
    found = gpu({cause: 0.5, "between kernels": 0.05})
    assert bound(found) == "launch/overhead-bound"
    assert found.reason.facts["idle_cause"] == cause
    assert verdict_sentence(found).endswith(f"of each step for the host: {words}")
    assert found.place == "train.py:63"
    assert found.numbers[0].value == pytest.approx(0.55)
    assert found.numbers[1].facts == {"idle_cause": cause}


def test_launches_that_always_find_an_empty_queue_limit_from_a_fifth_on() -> None:
    assert bound(gpu({"launch-bound": 0.27}, empty=0.95)) == "launch/overhead-bound"


def test_a_host_that_runs_ahead_is_not_the_limit_at_a_quarter() -> None:
    assert bound(gpu({"launch-bound": 0.27}, empty=0.2)) == "compute-bound"


def test_overhead_that_only_tracing_made_is_not_counted() -> None:
    """Traced, the GPU idles half of 200 ms; untraced the step is 104 ms, 100 of them work."""
    found = limit(
        times({"forward": 1.0}, ms=104.0), work=work(0.5, ms=200.0),
        study=study({"launch-bound": 0.5}, ms=200.0, empty=0.9), capture=capture(loader=False),
    )  # fmt: skip
    assert bound(found) == "compute-bound"


def test_a_cpu_program_of_tiny_operators_is_overhead_bound() -> None:
    found = limit(
        times({"forward": 1.0}, gpu=False),
        work=work(0.6, gpu=False, short=0.5, compute=0.1, memory=0.9, attained=0.05,
                  operators=4000.0),
        capture=capture(gpu=False),
    )  # fmt: skip
    assert bound(found) == "launch/overhead-bound"


def test_large_operators_far_from_the_memorys_rate_are_not_bandwidth_bound() -> None:
    found = limit(
        times({"forward": 1.0}, gpu=False),
        work=work(0.95, gpu=False, compute=0.1, memory=0.9, attained=0.05, operators=20.0),
        capture=capture(gpu=False),
    )  # fmt: skip
    assert bound(found) == "launch/overhead-bound"
    assert found.reason.code == LimitCode.SLOW_OPERATORS
    doubt = next(d for d in found.trust.doubts if d.code == DoubtCode.UNEXPLAINED_SLOWNESS)
    assert doubt.facts["share"] == pytest.approx(0.05)


# ------------------------------------------------------------------------- compute and memory


def test_a_busy_gpu_above_the_ridge_is_compute_bound_and_says_its_mfu() -> None:
    found = limit(
        times({"forward": 1.0}), work=work(0.97), study=study({"between kernels": 0.03}),
        capture=capture(),
        efficiency=Efficiency(mfu=0.42, ceiling_dtype="float32", ceiling_source="datasheet"),
    )  # fmt: skip
    assert bound(found) == "compute-bound"
    text = deciding_number(found.numbers[1])
    assert text == ("FLOP/s", "42 % of the peak (float32, datasheet)")


def test_a_busy_gpu_below_the_ridge_is_bandwidth_bound() -> None:
    found = gpu({"between kernels": 0.03}, compute=0.3, memory=0.7)
    assert bound(found) == "memory-bandwidth-bound"
    assert found.numbers[1].code == DecidingCode.BANDWIDTH
    assert found.numbers[1].value == pytest.approx(0.6)


def test_four_waits_of_a_tenth_do_not_make_one_limit() -> None:
    waits: dict[Cause, float] = {
        "input": 0.1, "transfer": 0.1, "launch-bound": 0.1, "collective wait": 0.1,
    }  # fmt: skip
    assert bound(gpu(waits)) == "compute-bound"


def test_without_ceilings_the_kind_of_operator_decides_and_it_is_an_estimate() -> None:
    rows = (
        CategoryRow(category="matmul", device_ns=90, count=1, share=0.9),
        CategoryRow(category="elementwise", device_ns=10, count=1, share=0.1),
    )
    found = limit(
        times({"forward": 1.0}), work=work(0.97, compute=None, memory=None, attained=None),
        study=study({"between kernels": 0.03}, categories=rows), capture=capture(),
    )  # fmt: skip
    assert bound(found) == "compute-bound"
    assert found.numbers[0].source == "estimated"
    assert found.trust.confidence == "doubtful"


# --------------------------------------------------------------------- capacity, communication


def test_out_of_memory_is_capacity_bound_whatever_else_is_known() -> None:
    full = OutOfMemory(
        asked_bytes=2 * GIB, free_bytes=GIB // 2, total_bytes=140 * GIB, step=3, phase="backward",
        place="model.py:88",
    )  # fmt: skip
    seen = Capture(stepping="optimizer", device=DeviceSeen(kind="cuda"), out_of_memory=full)
    for shares in ({"input": 1.0}, {}):
        found = limit(times(shares), capture=seen)
        assert bound(found) == "memory-capacity-bound"
        assert verdict_sentence(found).endswith(
            "out of memory at step 3 in its backward: 2 GiB asked, 512 MiB free"
        )
        assert found.place == "model.py:88"


@pytest.mark.parametrize(
    ("killed", "sure", "trust"),
    [(False, True, "good"), (True, True, "good"), (True, False, "doubtful")],
)
def test_a_program_that_died_of_the_hosts_memory_is_capacity_bound(
    killed: bool, sure: bool, trust: str
) -> None:
    full = OutOfMemory(
        asked_bytes=0, free_bytes=0, total_bytes=16 * GIB, allocated_bytes=15 * GIB, on="host",
        killed=killed, sure=sure, step=46,
    )  # fmt: skip
    seen = Capture(stepping="optimizer", device=DeviceSeen(kind="cuda"), out_of_memory=full)
    memory = MemoryUse(host_growth_bytes_per_step=40.0 * 2**20)
    found = limit(times({"forward": 1.0}), memory=memory, capture=seen)
    assert bound(found) == "memory-capacity-bound"
    assert [(n.code, n.value) for n in found.numbers] == [
        (DecidingCode.USED_BYTES, 15.0 * GIB), (DecidingCode.GROWTH_BYTES, 40.0 * 2**20),
    ]  # fmt: skip
    assert found.trust.confidence == trust


def test_an_allocator_that_retries_each_step_is_capacity_bound() -> None:
    memory = MemoryUse(retries=50, device_reserved_bytes=139 * GIB, device_total_bytes=140 * GIB)
    found = limit(times({"forward": 1.0}), memory=memory, capture=capture())
    assert bound(found) == "memory-capacity-bound"


@pytest.mark.parametrize(("retries", "reserved"), [(2, 60), (0, 139), (1, 139)])
def test_a_full_device_or_a_retry_at_the_start_is_not_capacity_bound(
    retries: int, reserved: int
) -> None:
    memory = MemoryUse(
        retries=retries, device_reserved_bytes=reserved * GIB, device_total_bytes=140 * GIB
    )
    found = limit(
        times({"forward": 1.0}), work=work(0.97), study=study({"between kernels": 0.03}),
        memory=memory, capture=capture(),
    )  # fmt: skip
    assert bound(found) == "compute-bound"


def test_exposed_collectives_are_communication_bound() -> None:
    assert bound(gpu({"collective wait": 0.2}, talk=0.35)) == "communication-bound"


def test_collectives_behind_the_backward_are_not_the_limit() -> None:
    assert bound(gpu({"between kernels": 0.02}, talk=0.05)) == "compute-bound"


def test_a_cpu_job_that_waits_for_its_peers_is_communication_bound() -> None:
    found = limit(
        times({"forward": 0.3, "backward": 0.7}, gpu=False),
        work=work(0.35, gpu=False, talk=0.55), capture=capture(gpu=False, loader=False),
    )  # fmt: skip
    assert bound(found) == "communication-bound"


def test_a_cpu_job_does_not_exchange_all_the_time_where_its_forward_takes_a_part() -> None:
    """13 ms of a traced step of 35, untraced 12.6: the model's own phases take four tenths."""
    found = cpu_shares(
        times({"forward": 0.12, "backward": 0.8, "optimizer": 0.04, "other": 0.04}, gpu=False,
              ms=12.6),
        work(0.38, gpu=False, talk=0.386, ms=34.6), None,
    )  # fmt: skip
    assert found.of["communication"] == pytest.approx(1 - 0.12 - 0.24 - 0.04)
    assert sum(found.of.values()) == pytest.approx(1)


# -------------------------------------------------------------------------- little to go by


def test_without_a_trace_phases_decide_and_it_is_doubtful() -> None:
    found = limit(times({"input": 0.7, "forward": 0.3}, gpu=False), capture=capture(gpu=False))
    assert bound(found) == "input-bound"
    assert found.trust.confidence == "doubtful"
    assert codes(found) == [DoubtCode.NO_TRACED_STEP]


def test_without_a_trace_an_idle_gpu_waits_for_the_host() -> None:
    phases = times({"forward": 0.5, "backward": 0.5})
    idle = limit(phases, capture=capture(), telemetered=Telemetered(gpu_utilisation=0.2))
    busy = limit(phases, capture=capture(), telemetered=Telemetered(gpu_utilisation=0.98))
    assert (bound(idle), bound(busy)) == ("launch/overhead-bound", "compute-bound")


def test_idle_time_that_cannot_be_believed_is_not_used() -> None:
    broken = study({"launch-bound": 0.9})
    blind = TraceStudy(files=("t",), events=0, label="t", window=broken.window)
    found = limit(times({"forward": 1.0}), work=work(0.1), study=blind, capture=capture())
    assert found.trust.confidence == "doubtful"
    assert DoubtCode.NO_DEVICE_WORK in codes(found)


def test_no_step_is_unknown_with_what_to_do() -> None:
    found = limit(StepTimes(), capture=Capture())
    assert bound(found) == "unknown"
    assert found.reason.code == LimitCode.NO_STEP
    assert "ridgeline.step()" in verdict_sentence(found)


def test_a_program_that_compiles_in_every_step_is_told_so() -> None:
    times = StepTimes(counted=12, compile_steps=tuple(range(12)))
    found = limit(times, capture=capture())
    assert found.reason.code == LimitCode.KEEPS_COMPILING
    assert found.reason.facts == {"compiled": 12, "steps": 12}


def test_a_program_without_torch_is_unknown_and_says_so() -> None:
    found = limit(StepTimes(), capture=Capture(torch_imported=False))
    assert found.reason.code == LimitCode.NO_TORCH
    assert bound(limit(StepTimes())) == "unknown"


def test_nothing_known_of_a_step_does_not_make_a_wait() -> None:
    of = dict.fromkeys(("input", "transfer", "overhead", "communication", "compute", "memory"), 0.0)
    assert winner(Shares(of=of)) == "compute"  # type: ignore[arg-type]


def test_stalls_of_a_busy_machine_are_not_the_programs_overhead() -> None:
    """Half the steps of 2 ms lost 4 ms to another process; the operators take 1.9 ms of each."""
    stalled = StepTimes(
        median_ms=2.1, ci=(2.0, 2.4), mean_ms=3.6, steps=100, counted=110,
        phases=(PhaseTime(phase="forward", ms=3.6, ci=(3, 4), share=1.0),),
    )  # fmt: skip
    found = limit(stalled, work=work(0.6, gpu=False, ms=3.2), capture=capture(gpu=False))
    assert bound(found) == "compute-bound"


# ------------------------------------------------------------------------------------- late ranks


def late(share: float, **changes: Any) -> LateRank:
    made = LateRank(
        rank=1, late_ns=share * 100e6, step_ns=100e6, phase="input", phase_ns=share * 101e6,
        steps=30, late_steps=30, place="train.py:13",
    )  # fmt: skip
    return replace(made, **changes)


def on_a_cpu(talk: float, found: LateRank, phases: Mapping[Phase, float] | None = None) -> Verdict:
    shares: Mapping[Phase, float] = phases or {"forward": 0.1, "backward": 0.9}
    return limit(
        times(shares, gpu=False), work=work(0.1, gpu=False, talk=talk),
        study=study({}), capture=Capture(stepping="optimizer", world=2), late=found,
    )  # fmt: skip


def test_a_job_that_waits_for_one_rank_names_it_with_phase_and_line() -> None:
    found = on_a_cpu(0.85, late(0.8))
    assert found.bound == "late-rank"
    assert found.place == "train.py:13"
    assert found.numbers[0].value == pytest.approx(0.8)
    for part in ("rank 1", "input", "80.8 ms", "train.py:13"):
        assert part in verdict_sentence(found)


def test_a_rank_that_is_a_little_late_does_not_limit_the_job() -> None:
    assert on_a_cpu(0.85, late(0.1)).bound == "communication-bound"
    assert on_a_cpu(0.85, late(0.25)).bound == "communication-bound"  # the exchange is longer


def test_another_wait_that_is_longer_than_the_late_rank_comes_first() -> None:
    phases: Mapping[Phase, float] = {"input": 0.6, "forward": 0.1, "backward": 0.3}
    assert on_a_cpu(0.25, late(0.25), phases).bound == "input-bound"


def test_a_late_rank_is_named_even_if_it_is_the_shown_one() -> None:
    phases: Mapping[Phase, float] = {"input": 0.6, "forward": 0.1, "backward": 0.3}
    assert on_a_cpu(0.1, late(0.55, rank=0), phases).bound == "late-rank"
    assert on_a_cpu(0.3, late(0.25), phases).bound == "input-bound"  # rank 0 waits for data, too


def test_a_late_rank_that_only_traced_steps_show_is_doubted() -> None:
    assert on_a_cpu(0.85, late(0.8)).trust.confidence == "good"
    assert on_a_cpu(0.85, late(0.8, basis="traced steps")).trust.confidence == "doubtful"


def on_cpu(done: StepWork, seen: Telemetered | None = None) -> Verdict:
    return limit(
        times({"forward": 1.0}, gpu=False),
        work=done,
        telemetered=seen or Telemetered(),
        capture=capture(gpu=False),
    )


CROWD = Telemetered(other_cores=1.6, cores=2)


def test_other_programs_on_the_processor_make_its_verdict_doubtful() -> None:
    found = on_cpu(work(0.95, gpu=False), CROWD)
    assert found.trust.confidence == "doubtful"
    (doubt,) = found.trust.doubts
    assert doubt.code == DoubtCode.OTHER_PROGRAMS
    assert doubt.facts == {"cores": 1.6, "machine_cores": 2}
    few = on_cpu(work(0.95, gpu=False), Telemetered(other_cores=0.4, cores=2))
    assert few.trust.confidence == "good"


def test_a_busy_host_does_not_touch_a_gpus_verdict() -> None:
    found = limit(
        times({"forward": 1.0}), work=work(0.95), study=study({"launch-bound": 0.05}),
        telemetered=CROWD, capture=capture(),
    )  # fmt: skip
    assert found.trust.confidence == "good"


def test_memory_that_wins_at_a_low_bandwidth_is_doubtful_with_the_number() -> None:
    done = work(0.95, gpu=False, compute=0.05, memory=0.95, attained=0.2, operators=20.0)
    found = on_cpu(done)
    assert bound(found) == "memory-bandwidth-bound"
    assert found.trust.confidence == "doubtful"
    assert codes(found) == [DoubtCode.LOW_BANDWIDTH]
    assert on_cpu(replace(done, memory_attained=0.5)).trust.confidence == "good"


def test_large_products_far_from_the_peak_are_still_arithmetic() -> None:
    done = replace(work(0.95, gpu=False, operators=20.0), compute_attained=0.02)
    assert bound(on_cpu(done)) == "compute-bound"


def test_operators_cannot_fill_what_untraced_steps_spend_elsewhere() -> None:
    """Half of a traced step of 180 ms would be 90 % of one of 100 ms; but 80 % of that is outside
    the model, and of those operators take no more than their half."""
    timed = times({"forward": 0.2, "other": 0.8}, gpu=False)
    found = cpu_shares(timed, work(0.5, gpu=False, ms=180.0), None)
    assert found.busy == pytest.approx(0.2 + 0.8 * 0.5)
    assert found.of["overhead"] == pytest.approx(0.4)


def test_operators_of_a_program_without_phases_are_all_in_the_rest() -> None:
    found = cpu_shares(times({"other": 1.0}, gpu=False), work(0.5, gpu=False, ms=180.0), None)
    assert found.busy == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("busy", "ms", "doubted"),
    [
        (0.95, 310.0, False),  # full of operators, however much tracing stretched which part
        (0.05, 310.0, False),  # hardly any operators, likewise
        (0.3, 310.0, True),  # 93 % of the step if operators keep their length, 30 % if not
        (0.95, 40.0, True),  # 38 % or 95 %
        (0.95, 180.0, False),
    ],
)
def test_long_traced_steps_are_a_doubt_only_where_the_verdict_depends_on_it(
    busy: float, ms: float, doubted: bool
) -> None:
    found = on_cpu(work(busy, gpu=False, ms=ms))
    assert (found.trust.confidence == "doubtful") == doubted


@pytest.mark.parametrize(
    ("cores", "code"),
    [
        (0.1, LimitCode.OWN_CODE_WAITS),
        (1.0, LimitCode.OWN_CODE),
        (None, LimitCode.OWN_CODE),
    ],
)
def test_code_outside_training_is_named(cores: float | None, code: LimitCode) -> None:
    found = limit(
        times({"forward": 0.07, "optimizer": 0.04, "other": 0.89}, gpu=False),
        work=work(0.08, gpu=False),
        telemetered=Telemetered(program_cores=cores),
        capture=capture(gpu=False),
    )
    assert bound(found) == "launch/overhead-bound"
    assert found.reason.code == code
    assert found.reason.facts["share"] == pytest.approx(0.89)


def test_overhead_inside_the_model_is_not_called_code_outside() -> None:
    found = limit(
        times({"forward": 0.9, "other": 0.1}, gpu=False),
        work=work(0.2, gpu=False),
        capture=capture(gpu=False),
    )
    assert found.reason.code == LimitCode.STARTS_OPERATORS


@pytest.mark.parametrize(
    ("phase", "share", "end"),
    [
        ("optimizer", 0.91, ", 91 % of it in the optimizer"),
        ("evaluation", 0.6, ", 60 % of it in evaluation"),
        ("optimizer", 0.4, "of each step"),
    ],
)
def test_a_phase_that_is_most_of_the_step_is_named(phase: str, share: float, end: str) -> None:
    timed = times({"forward": 1 - share, phase: share}, gpu=False)  # type: ignore[dict-item]
    found = limit(timed, work=work(0.95, gpu=False), capture=capture(gpu=False))
    assert verdict_sentence(found).endswith(end)
