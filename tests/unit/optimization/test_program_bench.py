"""Trials of a program within a budget: how long each may take, what is remembered, its cost."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.measure.clock import Deadline
from ridgeline.optimization import bench as bench_module
from ridgeline.optimization.bench import (
    MAX_COMPILING_S,
    MAX_TRIAL_FACTOR,
    Feeding,
    ProgramBench,
)
from ridgeline.optimization.kept_trials import KeptTrials
from ridgeline.records.facts import because
from ridgeline.records.optimized import SearchCode
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial, TrialFailure

TARGET = Target(kind="script", name="train.py", arguments=())
WORKERS = (Asked(fix="loader-workers", options={"workers": "2"}),)
COMPILE = (Asked(fix="compile"),)


class Clock:
    """A clock that only the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Runs:
    """In place of processes: each takes as long as it is told to, and is ended where it may not."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.limits: list[float] = []
        self.homes: list[Path] = []
        self.walls: dict[str, float] = {}
        self.plain = 2.0
        self.device = "cpu"
        self.names: list[str] = []
        self.failing: set[str] = set()
        """Names of trials that fail."""

    def __call__(
        self, target: Target, plan: Plan, home: Path, *,
        variables: Mapping[str, str] | None = None, timeout_s: float = 900.0,
        name: str = "trial",
    ) -> Outcome:  # fmt: skip
        self.names.append(name)
        if name in self.failing:
            return Outcome(failure=because(TrialFailure.RAISED, error="out of memory"))
        self.plans.append(plan)
        self.limits.append(timeout_s)
        self.homes.append(home)
        wall = max((self.walls.get(one.fix, 2.0) for one in plan.fixes), default=self.plain)
        if wall > timeout_s:
            failure = because(TrialFailure.TIMED_OUT, limit_s=timeout_s, step=None)
            return Outcome(failure=failure, wall_s=timeout_s, timed_out=True)
        return Outcome(
            trial=Trial(step_ns=(1,) * 9, jitter=plan.jitter, device=self.device), wall_s=wall
        )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    made = Runs()
    monkeypatch.setattr(bench_module, "run", made)
    return made


def made(home: Path, kept: KeptTrials | None = None) -> ProgramBench:
    return ProgramBench(TARGET, home, Plan(), deadline=Deadline(math.inf), kept=kept)


def test_a_change_under_which_it_hangs_is_ended_and_says_so(runs: Runs, tmp_path: Path) -> None:
    bench = made(tmp_path)
    assert bench.trial(()).trial is not None
    runs.walls["loader-workers"] = math.inf
    hung = bench.trial(WORKERS)
    assert hung.trial is None
    assert hung.failure == because(
        TrialFailure.TIMED_OUT, limit_s=60 + MAX_TRIAL_FACTOR * 2.0, step=None
    )
    assert bench.trial(()).trial is not None, "the rest goes on"


def test_patience_grows_with_the_program_and_with_compiling(runs: Runs, tmp_path: Path) -> None:
    bench = made(tmp_path)
    bench.trial(())
    bench.trial(WORKERS)
    bench.trial(COMPILE)
    first, quick, slow = runs.limits
    assert first == math.inf, "nothing is known yet: as long as there is time"
    assert slow - quick == MAX_COMPILING_S - 60


def test_when_the_time_is_over_no_process_is_started(runs: Runs, tmp_path: Path) -> None:
    clock = Clock()
    bench = ProgramBench(TARGET, tmp_path, Plan(), deadline=Deadline(10, now=clock))
    clock.now_s = 9.5
    for found in (bench.trial(()), bench.by_itself("optimized_train.py", ())):
        assert (found.trial, found.cut) == (None, True)
    assert runs.limits == []


def test_nothing_runs_beyond_the_deadline(runs: Runs, tmp_path: Path) -> None:
    """Neither the first trial, nor a compiler with its patience, nor the copy by itself."""
    clock = Clock()
    bench = ProgramBench(TARGET, tmp_path, Plan(), deadline=Deadline(90, now=clock))
    bench.trial(())
    clock.now_s = 30.0
    bench.trial(COMPILE)
    clock.now_s = 70.0
    bench.by_itself("optimized_train.py", COMPILE)
    assert runs.limits == [90.0, 60.0, 20.0]


def test_a_second_bench_takes_what_the_first_kept_in_its_order(runs: Runs, tmp_path: Path) -> None:
    first = made(tmp_path, KeptTrials(tmp_path / "trials"))
    runs.walls["loader-workers"] = math.inf
    for fixes in ((), (), WORKERS):
        first.trial(fixes)
    second = made(tmp_path, KeptTrials(tmp_path / "trials"))
    assert [second.trial(fixes).trial is None for fixes in ((), (), WORKERS)] == [
        False, False, True,
    ]  # fmt: skip
    assert (second.taken, second.remembered) == (1, 3), "one to see that the machine is as it was"
    second.trial(())
    assert second.taken == 2, "a third of the same was never run"
    assert len(runs.plans) == 5


def test_trials_of_another_time_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first call had the machine for a fifth of the time."""
    step = [100_000_000]

    def run(*told: object, **more: object) -> Outcome:
        return Outcome(trial=Trial(step_ns=(step[0],) * 20), wall_s=2.0)

    monkeypatch.setattr(bench_module, "run", run)
    first = made(tmp_path, KeptTrials(tmp_path / "trials"))
    for fixes in ((), (), WORKERS):
        first.trial(fixes)
    step[0] = 20_000_000
    second = made(tmp_path, KeptTrials(tmp_path / "trials"))
    found = [second.trial(fixes) for fixes in ((), (), WORKERS)]
    assert [one.trial is not None and one.trial.step_ns[0] for one in found] == [step[0]] * 3
    assert (second.taken, second.remembered) == (3, 0)
    assert second.outdated == because(
        SearchCode.EARLIER_TRIALS_OUTDATED, then_s=pytest.approx(0.1), now_s=pytest.approx(0.02)
    )
    third = made(tmp_path, KeptTrials(tmp_path / "trials"))
    assert [third.trial(fixes).remembered for fixes in ((), (), WORKERS)] == [True] * 3


def test_a_fresh_trial_is_run_whatever_was_kept(runs: Runs, tmp_path: Path) -> None:
    made(tmp_path, KeptTrials(tmp_path / "trials")).trial(())
    second = made(tmp_path, KeptTrials(tmp_path / "trials"))
    second.trial((), fresh=True)
    assert (second.taken, second.remembered) == (1, 0)


def test_another_seed_is_another_trial(runs: Runs, tmp_path: Path) -> None:
    made(tmp_path, KeptTrials(tmp_path / "trials")).trial(())
    other = ProgramBench(
        TARGET,
        tmp_path,
        Plan(seed=1),
        deadline=Deadline(math.inf),
        kept=KeptTrials(tmp_path / "trials"),
    )
    other.trial(())
    assert other.remembered == 0


def test_what_compiles_is_thought_to_cost_more(runs: Runs, tmp_path: Path) -> None:
    bench = made(tmp_path)
    bench.trial(())
    assert bench.cost_s(()) == 2.0
    assert bench.cost_s(WORKERS) == 2.0
    assert bench.cost_s(COMPILE) > 20
    bench.trial(COMPILE)
    assert bench.cost_s(COMPILE) == 2.0, "once run, it is known"


def test_a_trial_the_budget_ends_tells_nothing_of_its_change(runs: Runs, tmp_path: Path) -> None:
    bench = ProgramBench(TARGET, tmp_path, Plan(), deadline=Deadline(5, now=Clock()))
    bench.trial(())
    runs.walls["compile"] = 40.0
    cut = bench.trial(COMPILE)
    assert (cut.cut, cut.failure) == (True, because(TrialFailure.OUT_OF_TIME))
    assert runs.limits[-1] == 5
    runs.walls["compile"] = 3.0
    assert not bench.trial(COMPILE).cut


def test_one_that_hangs_does_not_take_the_time_of_the_others(runs: Runs, tmp_path: Path) -> None:
    bench = ProgramBench(TARGET, tmp_path, Plan(), deadline=Deadline(120, now=Clock()))
    bench.trial(())
    runs.walls["loader-workers"] = math.inf
    hung = bench.trial(WORKERS)
    assert not hung.cut
    assert runs.limits[-1] <= 30


def test_what_takes_the_time_of_what_is_kept_is_ended(runs: Runs, tmp_path: Path) -> None:
    """Products chosen by timing took four minutes of a budget of nine, and nothing was left to
    confirm what had been found in the first four."""
    bench = ProgramBench(TARGET, tmp_path, Plan(), deadline=Deadline(200, now=Clock()))
    bench.trial(())
    runs.walls["compile-max-autotune"] = 180.0
    slow = (Asked(fix="compile-max-autotune"),)
    bench.held_s = 80.0
    cut = bench.trial(slow)
    assert cut.cut
    assert cut.failure is not None
    assert cut.failure.code == TrialFailure.CUT_FOR_PROOF
    assert cut.failure.cause == because(TrialFailure.TIMED_OUT, limit_s=120, step=None)
    assert runs.limits[-1] == 120
    bench.held_s = 0.0
    assert not bench.trial(slow).cut


def test_timing_every_choice_is_thought_to_cost_much_more(runs: Runs, tmp_path: Path) -> None:
    bench = made(tmp_path)
    bench.trial(())
    tunes = bench.cost_s((Asked(fix="compile-max-autotune"),))
    assert tunes - 2.0 == 15 * (bench.cost_s(COMPILE) - 2.0)


def test_what_was_compiled_once_tells_what_it_takes_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left = [68.0, 24.0, 26.0]
    compiles = {68.0: 48.0, 24.0: 10.0, 26.0: 10.0}

    def run(*told: object, **more: object) -> Outcome:
        wall = left.pop(0)
        return Outcome(trial=Trial(step_ns=(1,) * 9, compile_s=compiles[wall]), wall_s=wall)

    monkeypatch.setattr(bench_module, "run", run)
    bench = made(tmp_path)
    costs = [bench.trial(COMPILE) and bench.cost_s(COMPILE) for _ in range(3)]
    assert costs == [pytest.approx(68 - 0.7 * 48), 24.0, 26.0]


def test_a_change_under_which_it_hangs_long_before_the_end_is_not_cut(
    runs: Runs, tmp_path: Path
) -> None:
    bench = made(tmp_path)
    bench.trial(())
    runs.walls["loader-workers"] = math.inf
    assert not bench.trial(WORKERS).cut


def test_a_copy_is_run_where_its_kernels_lie_compiled(runs: Runs, tmp_path: Path) -> None:
    bench = made(tmp_path)
    bench.trial(())
    bench.trial(COMPILE)
    bench.by_itself("optimized_train.py", COMPILE)
    assert runs.homes[-1] == runs.homes[-2] != runs.homes[0]
    assert runs.plans[-1].fixes == ()


def test_a_program_that_was_not_given_the_time_to_begin_may_have_it_in_the_next_call(
    runs: Runs, tmp_path: Path
) -> None:
    kept = KeptTrials(tmp_path / "trials")
    first = ProgramBench(TARGET, tmp_path, Plan(), deadline=Deadline(60, now=Clock()), kept=kept)
    runs.plain = 100.0
    cut = first.trial(())
    assert (cut.cut, cut.failure) == (True, because(TrialFailure.OUT_OF_TIME))
    second = made(tmp_path, KeptTrials(tmp_path / "trials"))
    assert second.trial(()).trial is not None


def test_a_trial_is_longer_where_more_is_made_ahead(runs: Runs, tmp_path: Path) -> None:
    feeding = Feeding(workers=2, ahead=16, max_more=100)
    bench = ProgramBench(
        TARGET, tmp_path, Plan(steps=80), deadline=Deadline(math.inf), feeding=feeding
    )
    eight = Asked(fix="prefetch", options={"factor": "8"})
    four = Asked(fix="loader-workers", options={"workers": "4"})
    larger = Asked(fix="larger-batch", options={"factor": "8"})
    for fixes in ((), (larger,), (eight,), (four, eight)):
        bench.trial(fixes)
    assert [plan.steps for plan in runs.plans] == [80, 80, 80 + 32 - 16, 80 + 64 - 16]
    bench.by_itself("optimized_train.py", (four, eight))
    assert runs.plans[-1].steps == 128


def test_perturbed_runs_share_the_time_where_a_gpu_has_cores_to_spare(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    for device, names in (("cpu", {"trial"}), ("cuda", {"perturbed-0", "perturbed-1"})):
        runs.device = device
        bench = made(tmp_path / device)
        bench.trial(())
        runs.names.clear()
        trials = [outcome.trial for outcome in bench.perturbed((1e-7, 4e-3))]
        assert [trial is not None and trial.jitter for trial in trials] == [1e-7, 4e-3]
        assert set(runs.names) == names
        assert bench.taken == 3


def test_a_perturbed_run_that_fails_beside_another_is_run_again_alone(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes may not fit into the memory of a device."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    runs.device = "cuda"
    bench = made(tmp_path)
    bench.trial(())
    runs.names.clear()
    runs.failing.add("perturbed-1")
    assert all(outcome.trial is not None for outcome in bench.perturbed((1e-7, 4e-3)))
    assert sorted(runs.names) == ["perturbed-0", "perturbed-1", "trial"]
