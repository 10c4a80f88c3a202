"""A change that is right at the first batch of an inference program and wrong from the second on is
caught in real trials; an honest one is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.equality.trials.parity import compare
from ridgeline.harness.trials.trial_process import run
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

PROGRAM = str(Path(__file__).with_name("cheating_inference.py"))
ULP, BFLOAT16 = 2.0**-23, 2.0**-8
CHEATS = {
    "old inputs": "the outputs of step 2 ",
    "old cache": "the outputs of step 2 are off by",
    "first answer": "the outputs of step 2 repeat those of step 1",
    "written over": "later steps write over the outputs of step 1, which are kept",
    "last samples": "the outputs of step 1 are off by",
    "one sample less": "an output of step 1 has 150 elements where the baseline's has 160",
}
Runs = Callable[..., Trial]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    def one(cheat: str, *fixes: str, loop: str = "kept", jitter: float = 0.0) -> Trial:
        target = Target(kind="script", name=PROGRAM, arguments=(cheat, loop))
        asked = tuple(Asked(fix=name) for name in fixes)
        plan = Plan(fixes=asked, steps=10, jitter=jitter, trains=False)
        found = run(target, plan, tmp_path_factory.mktemp("trial"), timeout_s=170)
        assert found.trial is not None, found.failure
        return found.trial

    return one


@pytest.fixture(scope="module")
def baseline(runs: Runs) -> list[Trial]:
    return [runs(""), runs(""), runs("", jitter=ULP), runs("", jitter=BFLOAT16)]


@pytest.mark.parametrize("cheat", CHEATS)
def test_wrong_from_the_second_batch_on_differs(
    cheat: str, runs: Runs, baseline: list[Trial]
) -> None:
    trial = runs(cheat)
    found = compare(baseline, trial, "rounding")
    assert found.equality == "differs", found.why
    assert any(CHEATS[cheat] in check.text for check in found.checks if not check.passed)
    assert compare(baseline, trial, "nothing").equality == "differs"
    assert compare(baseline, trial, "rounding", "bfloat16").equality == "differs"


@pytest.mark.parametrize(
    ("fixes", "alters"),
    [((), "nothing"), (("inference-mode",), "nothing"), (("eval-fusing",), "rounding")],
)
def test_honest_changes_of_inference_are_equal(
    fixes: tuple[str, ...], alters: str, runs: Runs, baseline: list[Trial]
) -> None:
    trial = runs("", *fixes)
    assert {one.fix for one in trial.applied} == set(fixes)
    found = compare(baseline, trial, alters)  # type: ignore[arg-type]
    assert found.equality == "equal", found.why
    assert found.missing == ()
    said = {check.what: check.text for check in found.checks}
    assert "over 8 batches" in said["outputs"]
    assert "still the same two steps later" in said["kept outputs"]


@pytest.mark.compiles
def test_a_compiled_model_is_equal_over_all_batches(runs: Runs, baseline: list[Trial]) -> None:
    trial = runs("", "compile")
    assert [one.fix for one in trial.applied] == ["compile"]
    found = compare(baseline, trial, "rounding")
    assert found.equality == "equal", found.why


def test_outputs_that_are_not_kept_may_be_written_over(runs: Runs) -> None:
    baseline = [runs("", loop="by hand"), runs("", loop="by hand")]
    assert all(len(step.outputs) == 1 for step in baseline[0].watched)
    assert all(step.outputs_changed is None for step in baseline[0].watched)
    found = compare(baseline, runs("written over", loop="by hand"), "nothing")
    assert found.equality == "equal", found.why
    again = compare(baseline, runs("first answer", loop="by hand"), "rounding", "bfloat16")
    assert again.equality == "differs"


def test_a_program_that_writes_to_its_outputs_itself_may(runs: Runs) -> None:
    baseline = [runs("", loop="changed in place"), runs("", loop="changed in place")]
    changed = baseline[0].watched[0].outputs_changed
    assert changed is not None
    assert changed > 0.1
    found = compare(baseline, runs("", loop="changed in place"), "nothing")
    assert found.equality == "equal", found.why


def test_what_the_first_of_two_models_made_is_no_data_of_the_second(runs: Runs) -> None:
    baseline = [runs("", loop="two models"), runs("", loop="two models")]
    trial = runs("", "autocast", loop="two models")
    assert [one.fix for one in trial.applied] == ["autocast"]
    found = compare(baseline, trial, "rounding", "bfloat16")
    assert found.equality == "equal", found.why
    assert [len(step.outputs) for step in trial.watched][1:] == [2] * 7


def test_a_program_that_trains_leaves_no_outputs(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    program = str(Path(PROGRAM).with_name("cheating_program.py"))
    home = tmp_path_factory.mktemp("trial")
    found = run(Target(kind="script", name=program), Plan(steps=9), home, timeout_s=120)
    assert found.trial is not None, found.failure
    assert all(step.outputs == () for step in found.trial.watched)
