"""How near the ceiling a step is, and what its time is: said where nothing is wrong."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.remains import remains
from ridgeline.diagnosis.shares import Shares
from ridgeline.records.run import Capture, LoaderSeen, PythonView
from ridgeline.records.run_summary import Efficiency, Telemetered
from ridgeline.records.trace import CategoryRow
from tests.unit.diagnosis import made_up_verdict as made
from tests.unit.diagnosis.test_answers import H200


def case(compute: float, memory: float) -> Case:
    of = {"input": 0.0, "transfer": 0.0, "overhead": 1 - compute - memory, "communication": 0.0,
          "compute": compute, "memory": memory}  # fmt: skip
    return Case(
        on_gpu=True, times=made.times({"forward": 1.0}), shares=Shares(of=of),
        work=replace(made.work(compute + memory), attained=0.5, compute_share=compute,
                     memory_share=memory), device=H200,
    )  # fmt: skip


def test_a_step_of_arithmetic_is_held_against_the_peak() -> None:
    efficiency = Efficiency(mfu=0.71, ceiling="bfloat16, measured here")
    found = remains(replace(case(0.7, 0.2), efficiency=efficiency))
    assert (found.ceiling_pct, found.ceiling) == (71.0, "bfloat16 peak (measured here)")
    assert found.parts == (
        "arithmetic 70 %, memory traffic 20 %, Python, launches and small operators 10 %"
    )


def test_a_trace_alone_takes_its_own_steps() -> None:
    found = remains(case(0.7, 0.2))  # 1 TFLOP in 100 ms: 10 of 400 TFLOP/s
    assert (found.ceiling_pct, found.ceiling) == (2.5, "float32 peak (datasheet)")


def test_a_step_of_memory_is_held_against_its_roofline() -> None:
    found = remains(case(0.2, 0.6))
    assert found.ceiling_pct == pytest.approx(100 * 0.5 * 0.8 * 0.8)
    assert found.ceiling == "roofline (memory for most of it)"


def test_what_formulas_do_not_cover_has_no_ceiling() -> None:
    little = case(0.7, 0.2)
    work = replace(made.work(0.9), coverage=0.3, attained=0.6, compute_share=0.2, memory_share=0.1)
    found = remains(replace(little, work=work))
    assert (found.ceiling_pct, found.ceiling) == (None, "")
    assert remains(Case()).parts == ""
    assert remains(Case()).ceiling_pct is None


def test_a_device_that_waits_is_no_all_clear() -> None:
    study = made.study({"launch-bound": 0.5, "input": 0.1})
    found = remains(replace(case(0.3, 0.1), study=study))
    assert found.unexplained == (
        "60 % of the step is not the model's work, and no rule explains it: Python, launches and "
        "small operators 60 % (most of it launch-bound at train.py:63)"
    )
    assert remains(case(0.7, 0.2)).unexplained == ""
    assert remains(case(0.5, 0.25)).unexplained != ""
    assert remains(replace(case(0.4, 0.2), on_gpu=False)).unexplained == ""
    assert remains(replace(case(0.3, 0.1), on_gpu=False)).unexplained.endswith("operators 60 %")
    assert remains(Case()).unexplained == ""


def waiting(share: float, **changed: object) -> Case:
    """A CPU that works more than half of the step, and waits for a worker's batches."""
    of = {"input": share, "transfer": 0.0, "overhead": 0.18, "communication": 0.0,
          "compute": 0.74 - share, "memory": 0.08}  # fmt: skip
    loader = LoaderSeen(workers=1, batches=94)
    made_up = replace(
        case(0.5, 0.1), on_gpu=False, shares=Shares(of=of), capture=Capture(loaders=(loader,))
    )
    return replace(made_up, **changed)


def test_a_wait_the_verdict_names_is_no_all_clear() -> None:
    crowded = Telemetered(other_cores=1.5, cores=2)
    idle = PythonView(worker_samples=300, worker_idle_samples=213)
    found = remains(waiting(0.29, telemetered=crowded, python=idle))
    assert found.unexplained == (
        "no rule explains the 29 % of waiting for data: workers had nothing to do 71 % of their "
        "time; other programs took 1.5 of 2 cores"
    )
    unknown = remains(waiting(0.29)).unexplained
    assert unknown.endswith("waiting for data: nothing recorded tells its cause")


def test_a_wait_the_verdict_does_not_name_leaves_the_all_clear() -> None:
    assert remains(waiting(0.06)).unexplained == ""
    assert remains(waiting(0.0)).unexplained == ""
    no_workers = Capture(loaders=(LoaderSeen(workers=0, batches=94),))
    assert remains(waiting(0.12, capture=no_workers)).unexplained == ""


def test_little_recorded_is_no_all_clear() -> None:
    empty = replace(made.study({}), ops=())
    found = remains(Case(kind="trace", study=empty))
    assert found.unexplained.startswith("no operator was recorded in ")
    assert found.unexplained.endswith("no rule could find a cause in it")


def test_phases_alone_do_not_tell_arithmetic_from_memory() -> None:
    guessed = replace(case(0.5, 0.3), shares=replace(case(0.5, 0.3).shares, split="guess"))
    assert remains(guessed).parts == (
        "the model's work 80 %, Python, launches and small operators 20 %"
    )


def test_the_kind_of_operator_that_is_most_of_a_part_is_named() -> None:
    rows = (CategoryRow(category="matmul", device_ns=80, count=1, share=0.8),
            CategoryRow(category="norm", device_ns=11, count=1, share=0.11),
            CategoryRow(category="elementwise", device_ns=10, count=1, share=0.1))  # fmt: skip
    study = made.study({"input": 0.1}, categories=rows)
    found = remains(replace(case(0.7, 0.2), study=study))
    assert found.parts.startswith("arithmetic 70 % (most of it matmul), memory traffic 20 % (most")
    assert "of it norm" in found.parts
