"""A machine that something else runs on for a moment, a person who ends the search, a step and its
loader that want the same cores."""

from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.fixes.fix import find_fix
from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.candidates import candidates
from ridgeline.optimization.contest import TrialHistory
from ridgeline.optimization.ladder import Ladder
from ridgeline.optimization.measure import STEP, ProcessNoise
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import Optimized, SearchCode
from ridgeline.records.run import LoaderSeen
from ridgeline.records.trial import Asked, Trial
from tests.unit.optimization.fake_bench import FakeBench, candidate, times


class Disturbed(FakeBench):
    """One trial of the unchanged program takes six times as long."""

    at = 0

    def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
        found = super().trial(fixes, **given)
        if found.trial is None or fixes or self.ran.count(frozenset()) != self.at:
            return found
        slow = tuple(6 * ns for ns in found.trial.step_ns)
        return replace(found, trial=replace(found.trial, step_ns=slow))


@pytest.mark.parametrize("at", [5, 6, 7])
def test_a_disturbed_trial_is_run_again_and_claims_nothing(at: int) -> None:
    bench = Disturbed(times(a=1.3))
    bench.at = at
    found = Ladder(bench, [candidate("a")]).climb("train.py")
    assert found.total is not None
    assert found.total.ratio.value == pytest.approx(1.3, rel=0.05)
    assert found.total.before_ms == pytest.approx(100, rel=0.05)


def test_a_machine_that_stays_slow_is_believed() -> None:
    speed = {"now": 1.0}
    bench = FakeBench(lambda names: speed["now"])
    arms = TrialHistory(bench)
    for _ in range(3):
        arms.trial(())
    speed["now"] = 1 / 3
    seen = [arms.trial(()).trial for _ in range(3)]
    assert all(one is not None and min(one.step_ns) > 2e8 for one in seen)
    assert len(bench.ran) == 3 + 3 + 1, "the first of them was run again, and no other"


def told(found: Optimized) -> dict[str, str]:
    return {rung.fix: rung.reason for rung in found.rungs}


def test_a_change_in_the_middle_of_which_it_was_interrupted_tells_what_is_known() -> None:
    class Interrupted(FakeBench):
        def trial(self, fixes: tuple[Asked, ...], **given: Any) -> Outcome:
            if sum("a" in names for names in self.ran) == 1 and fixes:
                raise KeyboardInterrupt
            return super().trial(fixes, **given)

    bench = Interrupted(times(a=1.05), spread=0.03)
    why = told(Ladder(bench, [candidate("a"), candidate("b")]).climb("train.py"))
    assert why["a"].code == SearchCode.INTERRUPTED_AFTER
    assert why["a"].facts["pairs"] == 1
    assert why["b"].code == SearchCode.INTERRUPTED


CPU = Ground(device="cpu", cores=2, processors=2, input_share=0.8, torch=(2, 11))
CPU = replace(
    CPU, flags=replace(CPU.flags, threads=2), loaders=(LoaderSeen(batches=100, workers=0),)
)
FIXES = [find_fix("loader-workers"), find_fix("threads")]


def crowded(names: frozenset[str]) -> float:
    """Two threads and two workers on two cores wait for each other."""
    if "loader-workers" not in names:
        return 0.9 if "threads" in names else 1.0
    return 2.0 if "threads" in names else 0.9


def test_however_little_fewer_threads_gain_alone() -> None:
    """Their limit was reckoned for a program whose loader has no workers."""
    found = searched(FakeBench(crowded, spread=0.03), replace(CPU, input_share=0.99))
    kept = {rung.fix for rung in found.rungs if rung.status == "kept"}
    assert kept == {"loader-workers", "threads"}


def searched(bench: FakeBench, ground: Ground) -> Optimized:
    def ask(kept: Any) -> Any:
        return candidates(ground, (), FIXES, kept=kept)

    return Ladder(bench, ask).climb("train.py")


def test_workers_that_want_the_cores_of_the_step_are_tried_with_fewer_threads() -> None:
    found = searched(FakeBench(crowded), CPU)
    kept = {rung.fix: rung.options for rung in found.rungs if rung.status == "kept"}
    assert kept == {"loader-workers": {"workers": "2"}, "threads": {"threads": "1"}}
    assert found.total is not None
    assert found.total.ratio.value == pytest.approx(2.0, rel=0.05)


def test_a_step_that_hardly_waits_leaves_the_threads_alone() -> None:
    bench = FakeBench(crowded)
    searched(bench, replace(CPU, input_share=0.1))
    assert {"loader-workers", "threads"} not in [set(names) for names in bench.ran]


def _of(ms: float) -> Trial:
    return Trial(step_ns=(round(1e6 * ms),) * 24)


def test_a_later_run_of_the_program_as_it_is_tells_how_far_apart_they_are() -> None:
    baseline = [_of(114), _of(113)]
    noise_of = ProcessNoise(baseline)
    pool = noise_of.now(STEP)
    narrow, noise = pool.spread, noise_of.of_process(STEP)
    noise_of.baseline_grew(STEP)
    assert pool.spread == narrow, "nothing was run since"
    baseline.append(_of(68))
    noise_of.baseline_grew(STEP)
    wide = pool.spread
    assert wide > 5 * narrow, "a contest that has begun sees it"
    assert noise_of.of_process(STEP) > 5 * noise
    noise_of.baseline_grew(STEP)
    assert pool.spread == wide, "counted once"


def test_a_change_that_rounds_is_judged_by_the_run_that_judging_it_took() -> None:
    """Two runs at first, a third when it is judged."""

    class Bench(FakeBench):
        def trial(self, fixes: tuple[Asked, ...], *, jitter: float = 0.0, **given: Any) -> Outcome:
            found = super().trial(fixes, jitter=jitter, **given)
            if not jitter or found.trial is None:
                return found
            fast = tuple(ns // 2 for ns in found.trial.step_ns)
            return replace(found, trial=replace(found.trial, step_ns=fast))

    exact = candidate("workers", alters="nothing", bound=4.0)
    found = Ladder(Bench(times(threads=1.6), trials=7), [exact, candidate("threads")]).climb("t.py")
    assert found.noise > 0.2
    rung = next(one for one in found.rungs if one.fix == "threads")
    assert rung.status != "kept"
