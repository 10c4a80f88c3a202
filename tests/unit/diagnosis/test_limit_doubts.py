"""Verdicts on a processor: what they are said of, and when they are to be doubted."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.limit import limit
from ridgeline.diagnosis.shares import cpu_shares
from ridgeline.records.run_summary import Telemetered, Verdict
from ridgeline.records.step_work import StepWork
from tests.unit.diagnosis.made_up_verdict import bound, capture, study, times, work


def on_cpu(done: StepWork, seen: Telemetered | None = None) -> Verdict:
    return limit(
        times({"forward": 1.0}, gpu=False),
        work=done,
        telemetered=seen,
        capture=capture(gpu=False),
    )


CROWD = Telemetered(other_cores=1.6, cores=2)


def test_other_programs_on_the_processor_make_its_verdict_doubtful() -> None:
    found = on_cpu(work(0.95, gpu=False), CROWD)
    assert found.trust.confidence == "doubtful"
    assert found.trust.why == "other programs took 1.6 of 2 cores"
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
    assert "only 20 % of the memory's bandwidth" in found.trust.why
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
    ("cores", "waits"), [(0.1, ", most of it waiting (0.1 cores busy)"), (1.0, ""), (None, "")]
)
def test_code_outside_training_is_named(cores: float | None, waits: str) -> None:
    found = limit(
        times({"forward": 0.07, "optimizer": 0.04, "other": 0.89}, gpu=False),
        work=work(0.08, gpu=False),
        telemetered=Telemetered(program_cores=cores),
        capture=capture(gpu=False),
    )
    assert bound(found) == "launch/overhead-bound"
    assert found.sentence == (
        "launch/overhead-bound: the program's own code outside model, loss and optimizer "
        f"takes 89 % of each step{waits}"
    )


def test_overhead_inside_the_model_is_not_called_code_outside() -> None:
    found = limit(
        times({"forward": 0.9, "other": 0.1}, gpu=False),
        work=work(0.2, gpu=False),
        capture=capture(gpu=False),
    )
    assert "Python and to starting operators" in found.sentence


@pytest.mark.parametrize(
    ("phase", "share", "said"),
    [
        ("optimizer", 0.91, ", 91 % of it in the optimizer"),
        ("evaluation", 0.6, ", 60 % of it in evaluation"),
        ("optimizer", 0.4, "of each step"),
    ],
)
def test_a_phase_that_is_most_of_the_step_is_named(phase: str, share: float, said: str) -> None:
    timed = times({"forward": 1 - share, phase: share}, gpu=False)  # type: ignore[dict-item]
    found = limit(timed, work=work(0.95, gpu=False), capture=capture(gpu=False))
    assert found.sentence.endswith(said)
