"""A change that makes a program faster by doing less is caught in real trials, whatever it claims
to alter; an honest one is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.equality.trials.parity import compare
from ridgeline.harness.trials.trial_process import run
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

PROGRAM = str(Path(__file__).with_name("cheating_program.py"))
LONG = 28
ULP, BFLOAT16 = 2.0**-23, 2.0**-8
CHEATS = {
    "steps skipped": "samples a step: 32 where the baseline has 16",
    "samples dropped": "samples a step: 8 where the baseline has 16",
    "half batch": "samples a step: 8 where the baseline has 16",
    "frozen layer": "parameters with a gradient: 6 where the baseline has 8",
    "loss scaled": "the loss at step 1 is off by 10 %",
    "clipped harder": "the gradient norm at step 1 is off by 50 %",
    "learning rate": "the learning rate at step 1 is 0.00202, not 0.002",
    "dropout off": "the loss at step 1 is off by",
    "norm in evaluation": "the loss at step 1 is off by",
    "no weight decay": "weight_decay=0.0, not 0.05",
    "other order": "the data of steps 1, 2, 3 and 5 more are not the baseline's",
    "same batch": "the data of steps 1, 2, 3 and 5 more are not the baseline's",
    "not a number": "the loss is NaN at step 4 where the baseline's is finite",
    "first loss only": "backwards a step: 1 where the baseline has 2",
    "statistics not updated": "norm.running_mean does not move",
}
LATE = {
    "late steps skipped": "backwards a step: 4 where the baseline has 2",
    "late samples dropped": "to the model a step: 3,456 where the baseline has 6,912, at steps 13",
    "late frozen layer": "hidden.weight no longer moves at step 28 (1 more)",
    # All of them but those that follow rounding alone, which is another number on each processor.
    "late rate of nothing": "no longer moves at step 28 (",
    "late first loss only": "backwards a step: 1 where the baseline has 2",
    "late not a number": "the loss is not finite at step 16",
}
Runs = Callable[..., Trial]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    def one(cheat: str = "", *fixes: str, jitter: float = 0.0, steps: int = 9) -> Trial:
        given = (cheat,) if cheat else ()
        target = Target(kind="script", name=PROGRAM, arguments=given)
        asked = tuple(Asked(fix=name) for name in fixes)
        plan = Plan(fixes=asked, steps=steps, jitter=jitter)
        found = run(target, plan, tmp_path_factory.mktemp("trial"), timeout_s=120)
        assert found.trial is not None, found.failure
        return found.trial

    return one


@pytest.fixture(scope="module")
def baseline(runs: Runs) -> list[Trial]:
    return [runs(), runs(), runs(jitter=ULP), runs(jitter=BFLOAT16)]


@pytest.mark.parametrize("cheat", CHEATS)
def test_doing_less_differs_and_says_what_is_less(
    cheat: str, runs: Runs, baseline: list[Trial]
) -> None:
    trial = runs(cheat)
    found = compare(baseline, trial, "rounding")
    assert found.equality == "differs", found.why
    assert CHEATS[cheat] in found.why
    assert compare(baseline, trial, "nothing").equality == "differs"
    # The widest band there is: numbers it cannot tell apart are counted, or told by settings.
    assert compare(baseline, trial, "rounding", "bfloat16").equality == "differs"


@pytest.fixture(scope="module")
def long_baseline(runs: Runs) -> list[Trial]:
    given = (0.0, 0.0, ULP, BFLOAT16)
    return [runs(jitter=jitter, steps=LONG) for jitter in given]


@pytest.mark.parametrize("cheat", LATE)
def test_doing_less_once_nobody_watches_differs(
    cheat: str, runs: Runs, long_baseline: list[Trial]
) -> None:
    trial = runs(cheat, steps=LONG)
    for precision in ("float32", "bfloat16"):
        found = compare(long_baseline, trial, "rounding", precision)
        assert found.equality == "differs", found.why
        assert LATE[cheat] in found.why


@pytest.mark.parametrize("fix", ["fused-optimizer", "autocast"])
def test_honest_changes_stay_equal_in_later_steps(
    fix: str, runs: Runs, long_baseline: list[Trial]
) -> None:
    found = compare(long_baseline, runs("", fix, steps=LONG), "rounding", "bfloat16")
    assert found.equality in ("equal", "weak"), found.why
    assert sum(check.what.startswith("later") for check in found.checks) == 6


@pytest.mark.parametrize("fixes", [(), ("foreach-optimizer",), ("fused-optimizer",)])
def test_honest_changes_are_equal(
    fixes: tuple[str, ...], runs: Runs, baseline: list[Trial]
) -> None:
    trial = runs("", *fixes)
    assert {one.fix for one in trial.applied} == set(fixes)
    found = compare(baseline, trial, "rounding" if fixes else "nothing")
    assert found.equality == "equal", found.why
    assert found.missing == ()


def test_outputs_are_held_against_float64(baseline: list[Trial]) -> None:
    first = baseline[0]
    assert first.float64_error is not None
    assert 0 < first.float64_error < 1e-6
    assert first.outputs != first.evaluation  # before the first step, and after the last
    assert len(first.gradients) == 8
    assert first.watched[0].forwards == first.watched[0].backwards == 2
