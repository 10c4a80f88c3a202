"""Programs that are not like most: what can be compared of them is, and doing less is caught."""

from pathlib import Path

import pytest

from ridgeline.equality.trials.parity import compare
from ridgeline.harness.trials.trial_process import run
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Plan, Trial

pytestmark = pytest.mark.reliability  # whole programs: `make programs`, and CI

PROGRAM = str(Path(__file__).with_name("odd_programs.py"))
ODD = {
    # kind: (an honest change, what it is called, a word of why where weak, what less is called)
    "fresh_order": ("fused-optimizer", "weak", "does not see the same data", "samples a step: 8"),
    "fresh_weights": ("fused-optimizer", "weak", "does not begin alike", "samples a step: 8"),
    "no_loss": ("", "equal", "", "samples a step: 8"),
    "by_hand": ("", "equal", "", "the loss at step 2"),
    "gan": ("fused-optimizer", "equal", "", "the loss at step 1 is off by 50 %"),
    "accumulated": ("fused-optimizer", "equal", "", "backwards a step: 15 where the baseline has"),
    "scheduled": ("fused-optimizer", "equal", "", "the learning rate at step 2 is 0.1"),
    "several": ("fused-optimizer", "equal", "", "backwards a step: 1 where the baseline has 2"),
}


def _trial(home: Path, kind: str, *, fix: str = "", less: bool = False) -> Trial:
    given = (kind, "less") if less else (kind,)
    target = Target(kind="script", name=PROGRAM, arguments=given)
    asked = (Asked(fix=fix),) if fix else ()
    plan = Plan(fixes=asked, steps=9, trains=kind != "no_loss")
    found = run(target, plan, home, timeout_s=120)
    assert found.trial is not None, found.failure
    return found.trial


@pytest.mark.parametrize("kind", ODD)
def test_odd_programs_are_called_what_can_be_known_of_them(kind: str, tmp_path: Path) -> None:
    fix, called, weak, less = ODD[kind]
    baseline = [_trial(tmp_path, kind), _trial(tmp_path, kind)]
    honest = _trial(tmp_path, kind, fix=fix)
    assert bool(honest.applied) == bool(fix)
    found = compare(baseline, honest, "rounding" if fix else "nothing")
    assert found.equality == called, found.why
    assert any(weak in text for text in found.missing) or not weak
    cheated = compare(baseline, _trial(tmp_path, kind, less=True), "rounding")
    assert cheated.equality == "differs", cheated.why
    assert less in cheated.why
