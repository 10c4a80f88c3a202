"""What is run to judge the fixes that a race has proposed."""

import math

import pytest

from ridgeline.optimization.candidates import Candidate, asked
from ridgeline.optimization.judge import ULP, Judge
from ridgeline.optimization.measure import STEP
from ridgeline.optimization.proof import MAX_LOSSES, losses_of
from ridgeline.records.trial import LaterStep, Trial, WatchedStep
from tests.unit.optimization.fake_bench import FakeBench, candidate, times

HALF = candidate("half", slot="precision", precision="bfloat16")
FUSED = candidate("fused")
WORKERS = candidate("workers", alters="nothing")


@pytest.mark.parametrize(
    ("fixes", "exact", "jitters"),
    [
        ([WORKERS], False, [0.0]),
        ([WORKERS], True, [0.0]),
        ([WORKERS, FUSED], False, [0.0, ULP]),
        ([FUSED, HALF], False, [0.0, ULP, 2.0**-8]),
        ([candidate("larger", alters="semantics")], False, [0.0]),
    ],
)
def test_only_fixes_that_round_need_perturbed_runs(
    fixes: list[Candidate], exact: bool, jitters: list[float]
) -> None:
    bench = FakeBench(times())
    judge = Judge(bench, STEP, lambda text: None)
    timed = []
    assert judge.learn_for_proof(fixes, exact, timed.append) is None
    assert bench.jitters == jitters
    assert [trial.jitter for trial in judge.baseline] == jitters
    assert len(timed) == 1, "perturbed runs are not timed"


def judged(bench: FakeBench, *fixes: Candidate) -> tuple[str, int]:
    """Return the verdict, and how many runs of the unperturbed baseline it took."""
    judge = Judge(bench, STEP, lambda text: None)
    assert judge.learn_for_proof(fixes, False) is None
    trial = bench.trial(asked(fixes)).trial
    assert trial is not None
    parity = judge.compared(trial, fixes)
    return parity.equality, sum(not names and not jitter for names, _, jitter in bench.asked)


def test_equal_results_need_one_run_of_the_baseline() -> None:
    assert judged(FakeBench(times()), WORKERS) == ("equal", 1)


def test_a_second_run_shows_that_the_baseline_differs_from_itself() -> None:
    bench = FakeBench(times())
    bench.draws = False
    bench.noise = 1e-5
    verdict, runs = judged(bench, WORKERS)
    assert verdict in ("equal", "weak")
    assert runs == 2


def test_results_that_differ_from_a_baseline_that_repeats_itself_differ() -> None:
    bench = FakeBench(times())
    bench.draws = False
    bench.moves.add("workers")
    assert judged(bench, WORKERS) == ("differs", 2)
    assert judged(bench, WORKERS)[0] == "differs"


def test_a_repeat_that_a_contest_has_made_spares_another() -> None:
    bench = FakeBench(times())
    bench.moves.add("workers")
    judge = Judge(bench, STEP, lambda text: None)
    judge.learn_for_proof([WORKERS], False)
    repeat, trial = bench.trial(()).trial, bench.trial(asked([WORKERS])).trial
    assert repeat is not None
    assert trial is not None
    judge.add_repeat(repeat)
    assert judge.compared(trial, [WORKERS]).equality == "differs"
    assert len(bench.asked) == 3


def test_losses_of_watched_and_later_steps_are_one_curve() -> None:
    trial = Trial(
        watched=(WatchedStep(loss=3.0), WatchedStep(loss=math.nan), WatchedStep()),
        later=(LaterStep(number=3, loss=2.0), LaterStep(number=5, loss=1.0),
               LaterStep(number=10_000, loss=0.5)),
    )  # fmt: skip
    found = losses_of(trial)
    assert found[:6] == (3.0, None, None, 2.0, None, 1.0)
    assert len(found) == MAX_LOSSES
    assert losses_of(Trial(watched=(WatchedStep(),))) == ()
