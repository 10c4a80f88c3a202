"""Time that other processes took is told from waiting and from the program's own work."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.shares import Observed, own_times, preemption
from ridgeline.records.run import Capture, LoaderSeen, ThreadTime
from ridgeline.records.run_summary import StepTimes, Telemetered
from ridgeline.records.verdict import DecidingCode, Verdict
from tests.unit.diagnosis.made_up_verdict import bound, capture, limit, times, work

CROWDED = Telemetered(other_cores=1.5, cores=2, program_cores=0.2, worker_cores=0.0, samples=20)
SLEEPS = {"input": 0.3, "forward": 0.25, "backward": 0.35, "optimizer": 0.1}
"""Phases as shares of a step. Its thread waited for a processor for 60 % of the step, and the
loader slept all of its time."""


def _captured(queued: float, processor: float, worked: float = 0.0) -> Capture:
    account = ThreadTime(
        wall_ns=1_000_000, processor_ns=round(processor * 1e6), queued_ns=round(queued * 1e6)
    )
    loader = LoaderSeen(batches=46, place="data.py:41", worked=worked)
    return replace(capture(gpu=False), loaders=(loader,), light_time=account, traced_time=account)


def _of(taken: Capture, seen: Telemetered, step: StepTimes) -> Verdict:
    return limit(step, work=work(0.9, gpu=False, ms=500.0), telemetered=seen, capture=taken)


def test_a_loader_that_sleeps_is_the_limit_however_crowded_the_machine_is() -> None:
    step = times(SLEEPS, gpu=False)
    found = _of(_captured(0.6, 0.1), CROWDED, step)
    assert bound(found) == "input-bound"
    assert found.trust.confidence == "doubtful"
    unknown = _of(replace(_captured(0.6, 0.1), light_time=None), CROWDED, step)
    assert bound(unknown) != "input-bound"


def test_the_shares_and_what_others_took_add_up_to_the_step() -> None:
    seen = Observed(
        times=times(SLEEPS, gpu=False), work=work(0.9, gpu=False, ms=500.0),
        telemetered=CROWDED, capture=_captured(0.6, 0.1),
    )  # fmt: skip
    shares = seen.shares
    assert shares.preempted == pytest.approx(0.6 * 1.5 / 1.6)
    assert sum(shares.of.values()) + shares.preempted == pytest.approx(1)
    assert shares.of["input"] == pytest.approx(0.3)  # a sleep is as long on a crowded machine


def test_a_phase_loses_in_proportion_to_the_time_it_was_ready_to_run() -> None:
    taken = preemption(_captured(0.5, 0.5, worked=0.5), replace(CROWDED, program_cores=0.5))
    assert taken is not None
    found = own_times(
        times({"input": 0.5, "forward": 0.5}, gpu=False), taken, _captured(0.5, 0.5, 0.5)
    )
    by_phase = {phase.phase: phase.ms for phase in found.phases}
    assert found.mean_ms == pytest.approx(50)
    assert by_phase["input"] == pytest.approx(25)  # all of it was ready to run: half of it ran
    assert by_phase["forward"] == pytest.approx(25)


def test_time_held_by_the_programs_own_threads_and_workers_is_not_charged_to_others() -> None:
    own = Telemetered(other_cores=0.0, cores=2, program_cores=1.0, worker_cores=1.0, samples=20)
    taken = preemption(_captured(0.5, 0.5), own)
    assert taken is not None
    assert taken.light == 0.0
    assert preemption(_captured(0.5, 0.5), replace(own, other_cores=None)) is None


def test_a_program_that_leaves_processors_free_does_not_compete_with_itself() -> None:
    """The program is too short for a sample of the whole machine, so that the use by other programs
    is not known."""
    short = Telemetered(other_cores=None, cores=2, program_cores=0.4, samples=6)
    taken = preemption(_captured(0.5, 0.4), short)
    assert taken is not None
    assert taken.light == pytest.approx(0.5)
    assert preemption(_captured(0.5, 0.4), replace(short, cores=0)) is None


def test_a_little_time_in_the_queue_changes_nothing() -> None:
    step = times({"forward": 0.6, "backward": 0.4}, gpu=False)
    seen = Observed(
        times=step, work=work(0.9, gpu=False), capture=_captured(0.03, 0.97),
        telemetered=replace(CROWDED, program_cores=1.0),
    )  # fmt: skip
    assert seen.shares.preempted == 0.0


@pytest.mark.parametrize("traced", [True, False])
def test_a_processor_cannot_work_longer_than_the_program_had_one(traced: bool) -> None:
    """The forward waits for a lock that another process holds: its time is not arithmetic."""
    found = limit(
        times({"forward": 0.96, "optimizer": 0.04}, gpu=False),
        work=work(0.96, gpu=False) if traced else None,
        telemetered=Telemetered(other_cores=0.0, cores=2, program_cores=0.1, samples=20),
        capture=capture(gpu=False),
    )
    assert bound(found) == "launch/overhead-bound"
    assert found.numbers[1].value == pytest.approx(0.1)  # the cores it used stand beside it


def test_a_program_that_was_preempted_is_not_said_to_wait() -> None:
    step = times({"forward": 0.07, "optimizer": 0.04, "other": 0.89}, gpu=False)
    taken = _captured(0.85, 0.1)
    found = limit(
        step, work=work(0.05, gpu=False, short=1.0), telemetered=CROWDED,
        capture=replace(taken, loaders=()),
    )  # fmt: skip
    assert bound(found) == "launch/overhead-bound"
    assert found.numbers[1].code != DecidingCode.CORES


def test_phases_add_up_to_the_rest_of_the_step_even_if_the_accounts_differ() -> None:
    """The loader slept for 60 % of steady steps, and the thread waited for a processor for 60 % of
    whole windows."""
    step = times({"input": 0.6, "forward": 0.4}, gpu=False)
    found = Observed(
        times=step, work=work(0.5, gpu=False), telemetered=CROWDED, capture=_captured(0.6, 0.1)
    ).shares
    assert sum(found.of.values()) + found.preempted == pytest.approx(1)
    assert sum(found.undisturbed.values()) == pytest.approx(1)
    assert all(share >= 0 for share in found.of.values())
