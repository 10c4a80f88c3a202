"""How near the ceiling a step is, and what its time is: said where nothing is wrong."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.shares import Shares
from ridgeline.diagnosis.unexplained_time import remains
from ridgeline.records.run import Capture, LoaderSeen, Phase, PythonView, RunFile, Settings, Target
from ridgeline.records.run_summary import Efficiency, Telemetered
from ridgeline.records.sites import OwnCode, Sites
from ridgeline.records.trace import CategoryRow, Place
from ridgeline.report.views.findings import closing_sentences, largest_loss
from tests.unit.diagnosis import made_up_verdict as made
from tests.unit.diagnosis.made_up_steps import step
from tests.unit.diagnosis.test_answers import H200
from tests.unit.diagnosis.test_findings import case as case_of_shares
from tests.unit.diagnosis.test_findings import drawn, says


def case(compute: float, memory: float) -> Case:
    of = {"input": 0.0, "transfer": 0.0, "overhead": 1 - compute - memory, "communication": 0.0,
          "compute": compute, "memory": memory}  # fmt: skip
    return Case(
        on_gpu=True, times=made.times({"forward": 1.0}), shares=Shares(of=of),
        work=replace(made.work(compute + memory), attained=0.5, compute_share=compute,
                     memory_share=memory), device=H200,
    )  # fmt: skip


def test_a_step_of_arithmetic_is_held_against_the_peak() -> None:
    efficiency = Efficiency(mfu=0.71, ceiling_dtype="bfloat16", ceiling_source="measured")
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


MS = 1_000_000
ROLLOUT = Place(file="train.py", line=12, function="rollout")


def on_cpu(
    phases: Mapping[Phase, float], busy: float, *, own_ms: float, stacks: bool = True
) -> Case:
    """A step of 100 ms on a CPU; `own_ms` of it in the program's own functions by the trace."""
    of = {"input": 0.0, "transfer": 0.0, "overhead": 1 - busy, "communication": 0.0,
          "compute": busy, "memory": 0.0}  # fmt: skip
    places = ((ROLLOUT, 0.75 * own_ms * MS),) if stacks else ()
    return Case(
        kind="run" if phases else "trace",
        times=made.times(phases, gpu=False) if phases else made.StepTimes(),
        work=made.work(busy, gpu=False),
        shares=Shares(of=of),
        sites=Sites(own_code=OwnCode(ns=own_ms * MS, places=places), stacks=stacks),
    )


def test_a_small_finding_does_not_hide_the_largest_loss() -> None:
    waits = on_cpu({"forward": 0.1, "other": 0.9}, 0.1, own_ms=86)
    found = drawn([says("copy", 0.07, "overhead")], waits)
    assert found.loss is not None
    assert found.loss.kind == "overhead"
    assert found.loss.share_pct == pytest.approx(83, abs=0.2)
    assert found.loss.own_code_pct == pytest.approx(83, abs=0.2)
    assert [(one.function, one.line) for one in found.loss.places] == [("rollout", 12)]
    assert found.loss.places[0].share_pct == pytest.approx(0.75 * 83, abs=0.2)
    assert largest_loss(found) in closing_sentences(found)


def test_a_loss_without_any_finding_stands_in_their_place() -> None:
    found = drawn([], on_cpu({"forward": 0.1, "other": 0.9}, 0.1, own_ms=86))
    assert found.loss is not None
    assert largest_loss(found) in closing_sentences(found)[0]


@pytest.mark.parametrize(
    ("of", "needs"),
    [
        (on_cpu({}, 0.1, own_ms=86, stacks=False), "stacks"),
        (on_cpu({}, 0.1, own_ms=86), ""),
        (on_cpu({"forward": 0.1, "other": 0.9}, 0.1, own_ms=86), "python"),
    ],
    ids=["trace without stacks", "trace with stacks", "run"],
)
def test_the_loss_says_what_would_tell_more(of: Case, needs: str) -> None:
    found = drawn([], of)
    assert found.loss is not None
    assert found.loss.needs == needs


def test_a_run_that_sampled_python_needs_nothing_more() -> None:
    run = RunFile(
        name="x", target=Target(kind="script", name="t.py"), settings=Settings(python=True)
    )
    found = drawn([], replace(on_cpu({"forward": 0.1, "other": 0.9}, 0.1, own_ms=86), run=run))
    assert found.loss is not None
    assert found.loss.needs == ""


@pytest.mark.parametrize(
    "of",
    [
        case_of_shares(overhead=0.08, busy=0.92),  # the GPU is busy
        case_of_shares(overhead=0.3, busy=0.7),  # explained by the finding
        on_cpu({"forward": 0.5, "backward": 0.4, "other": 0.1}, 0.6, own_ms=10),  # a usual loop
    ],
    ids=["busy", "explained", "usual"],
)
def test_well_tuned_programs_get_no_such_line(of: Case) -> None:
    assert drawn([says("loop", 0.25, "overhead")], of).loss is None


def test_a_gpu_that_idles_for_no_known_reason_is_said() -> None:
    found = drawn([says("tf32", 0.05)], case_of_shares(overhead=0.6, busy=0.4))
    assert found.loss is not None
    assert found.loss.share_pct == pytest.approx(60)


def test_causes_of_idling_at_one_line_are_added_up() -> None:
    waits = replace(
        case_of_shares(overhead=0.6, busy=0.4),
        study=made.study({"launch-bound": 0.4, "other host": 0.2}),
    )
    loss = drawn([], waits).loss
    assert loss is not None
    (place,) = loss.places
    assert (place.line, place.share_pct) == (63, pytest.approx(60))


def test_a_larger_finding_speaks_for_itself_unless_the_rest_is_large_too() -> None:
    both = case_of_shares(input_=0.5, overhead=0.2, busy=0.3)
    loader = says("loader", 0.5, "input")
    assert drawn([loader], both).loss is None
    larger = case_of_shares(input_=0.5, overhead=0.35, busy=0.15)
    found = drawn([loader], larger)
    assert found.loss is not None
    assert found.loss.kind == "overhead"


def test_pauses_that_take_most_of_the_time_are_a_loss() -> None:
    """Rollouts without gradients between updates: the step time leaves them out."""
    calm = on_cpu({"forward": 0.6, "backward": 0.4}, 0.9, own_ms=0)
    paused = replace(
        calm,
        times=replace(calm.times, pause_share=0.63),
        pauses=(step(7, {"evaluation": 700.0, "forward": 1.0}, ms=900.0),),
    )
    found = drawn([], paused)
    assert found.loss is not None
    assert (found.loss.kind, found.loss.phase) == ("pauses", "evaluation")
    assert found.loss.share_pct == pytest.approx(63)
    assert drawn([], calm).loss is None


def test_a_busy_machine_hides_no_loss_of_the_programs_own_code() -> None:
    """Own code that is 70 % of the program's time is told where others take half of the step."""
    waits = on_cpu({"forward": 0.3, "other": 0.7}, 0.3, own_ms=70)
    assert waits.shares is not None
    for preempted, told in ((0.0, True), (0.75, True), (0.9, False)):
        of = {kind: share * (1 - preempted) for kind, share in waits.shares.of.items()}
        shares = replace(waits.shares, of=of, preempted=preempted)
        assert (drawn([], replace(waits, shares=shares)).loss is not None) is told


def test_a_finding_about_a_larger_pause_speaks_for_the_program_s_own_code() -> None:
    waits = on_cpu({"forward": 0.3, "other": 0.7}, 0.3, own_ms=70)
    assert drawn([says("idle-between-epochs", 0.9, "pauses")], waits).loss is None
    found = drawn([says("idle-between-epochs", 0.4, "pauses")], waits)
    assert found.loss is not None


def test_code_outside_of_functions_is_told_by_its_file() -> None:
    waits = on_cpu({"forward": 0.1, "other": 0.9}, 0.1, own_ms=86)
    script = Place(file="train.py", line=9, function="<module>")
    code = OwnCode(ns=86 * MS, places=((script, 86.0 * MS),))
    found = drawn([], replace(waits, sites=replace(waits.sites, own_code=code)))
    assert "train.py:9" not in largest_loss(found)
    assert "train.py" in largest_loss(found)


def test_what_other_processes_took_is_no_loss_of_the_program() -> None:
    of = {"input": 0.0, "transfer": 0.0, "overhead": 0.05, "communication": 0.0,
          "compute": 0.25, "memory": 0.0}  # fmt: skip
    taken = replace(
        on_cpu({"forward": 0.6, "backward": 0.4}, 0.25, own_ms=0),
        shares=Shares(of=of, preempted=0.7),  # type: ignore[arg-type]
    )
    found = drawn([], taken)
    assert found.loss is None
    assert found.unexplained == ""
