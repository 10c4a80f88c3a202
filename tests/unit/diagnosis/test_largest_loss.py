"""The largest loss has a line, whether a finding explains it or not."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.shares import Shares
from ridgeline.records.run import Phase, RunFile, Settings, Target
from ridgeline.records.sites import OwnCode, Sites
from ridgeline.records.trace import Place
from ridgeline.report.finding_lines import below, instead, largest_loss
from tests.unit.diagnosis import made_up_verdict as made
from tests.unit.diagnosis.made_up_steps import step
from tests.unit.diagnosis.test_findings import case, drawn, says

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
    assert largest_loss(found) in below(found)


def test_a_loss_without_any_finding_stands_in_their_place() -> None:
    found = drawn([], on_cpu({"forward": 0.1, "other": 0.9}, 0.1, own_ms=86))
    assert found.loss is not None
    assert largest_loss(found) in instead(found)[0]


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
        case(overhead=0.08, busy=0.92),  # the GPU is busy
        case(overhead=0.3, busy=0.7),  # explained by the finding
        on_cpu({"forward": 0.5, "backward": 0.4, "other": 0.1}, 0.6, own_ms=10),  # a usual loop
    ],
    ids=["busy", "explained", "usual"],
)
def test_well_tuned_programs_get_no_such_line(of: Case) -> None:
    assert drawn([says("loop", 0.25, "overhead")], of).loss is None


def test_a_gpu_that_idles_for_no_known_reason_is_said() -> None:
    found = drawn([says("tf32", 0.05)], case(overhead=0.6, busy=0.4))
    assert found.loss is not None
    assert found.loss.share_pct == pytest.approx(60)


def test_causes_of_idling_at_one_line_are_added_up() -> None:
    waits = replace(
        case(overhead=0.6, busy=0.4), study=made.study({"launch-bound": 0.4, "other host": 0.2})
    )
    loss = drawn([], waits).loss
    assert loss is not None
    (place,) = loss.places
    assert (place.line, place.share_pct) == (63, pytest.approx(60))


def test_a_larger_finding_speaks_for_itself_unless_the_rest_is_large_too() -> None:
    both = case(input_=0.5, overhead=0.2, busy=0.3)
    loader = says("loader", 0.5, "input")
    assert drawn([loader], both).loss is None
    larger = case(input_=0.5, overhead=0.35, busy=0.15)
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
