"""Whole trainings over several seeds: what is read of them, and the verdict."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgeline.comparison import outcome as outcomes
from ridgeline.comparison.outcome import (
    OutcomeSettings,
    Watching,
    compare_outcomes,
    printed_number,
    seeding_in,
)
from ridgeline.comparison.program_recorder import RecordPlan
from ridgeline.equality.scripts import ProgramRecord
from ridgeline.errors import TargetError, UsageError
from ridgeline.harness.usercode.child_process import Ended
from ridgeline.measure.clock import Deadline
from ridgeline.records.parity import OutcomeCode, Training, TrainingOutcome
from ridgeline.records.run import Target
from ridgeline.records.trial import TrialFailure
from ridgeline.report.views.outcome import data, document, figures

Answer = tuple[list[float], str, int]
"""Losses, what is printed, and the exit code."""
BASELINE = Target(kind="script", name="a.py", arguments=("--seed", "{seed}"))
CANDIDATE = Target(kind="script", name="b.py", arguments=("--seed", "{seed}"))


class Machine:
    """Trains without a process: `answer` tells what a script does with a seed."""

    def __init__(self, answer: Callable[[str, int], Answer], takes_s: float = 10.0) -> None:
        self.now_s = 0.0
        self.commands: list[list[str]] = []
        self._answer = answer
        self._takes_s = takes_s

    def clock(self) -> float:
        return self.now_s

    def __call__(
        self, target: Target, home: Path, plan: RecordPlan, *, compiled: Path, limit_s: float,
        device: str | None, keep_output: Path,
    ) -> tuple[Ended, list[ProgramRecord]]:  # fmt: skip
        self.commands.append([target.name, *target.arguments])
        if self._takes_s > limit_s:
            self.now_s += limit_s
            keep_output.touch()
            return Ended(code=None, wall_ns=round(1e9 * limit_s)), []
        self.now_s += self._takes_s
        losses, printed, code = self._answer(target.name, plan.seed)
        keep_output.write_text(printed)
        record = ProgramRecord(
            losses=tuple(losses), last_losses=tuple(losses[-100:]), loss_count=len(losses)
        )
        lines = tuple(printed.splitlines()[-6:])
        return Ended(code=code, wall_ns=round(1e9 * self._takes_s), last_lines=lines), [record]


def run(
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[str, int], Answer],
    *,
    budget_s: float = math.inf,
    watching: Watching | None = None,
    **settings: Any,
) -> TrainingOutcome:
    machine = Machine(answer)
    monkeypatch.setattr(outcomes, "run_recorded", machine)
    deadline = Deadline(budget_s, now=machine.clock)
    asked = OutcomeSettings(deadline=deadline, **settings)
    outcome = compare_outcomes(BASELINE, CANDIDATE, asked, watching)
    # Every outcome can be told in every form.
    document(outcome)
    assert data(outcome)["verdict"] == outcome.verdict
    assert len(figures(outcome).rows) == len({one.seed for one in outcome.trainings})
    return outcome


def noisy(seed: int) -> float:
    """A final loss between 0.9 and 1.1."""
    return 1.0 + 0.1 * math.sin(12.9898 * (seed + 1))


def losses(final: float) -> list[float]:
    return [final + 1, final + 0.5, final + 0.2, *[final] * 17]


def shifted(by: float) -> Callable[[str, int], Answer]:
    return lambda script, seed: (losses(noisy(seed) + (by if script == "b.py" else 0)), "", 0)


def test_trainings_that_end_the_same_to_the_bit_are_equivalent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = run(monkeypatch, shifted(0.0), seeds=4)
    assert (outcome.verdict, outcome.reason.code) == ("EQUIVALENT", OutcomeCode.IDENTICAL)
    assert outcome.seeds == (0, 1, 2, 3)
    assert outcome.source == "losses"
    assert outcome.equivalence is not None
    assert outcome.equivalence.margin == outcome.seed_spread
    assert outcome.margin_source == "spread between seeds"


def test_a_difference_beyond_the_spread_between_seeds_is_different(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = run(monkeypatch, shifted(0.5), seeds=3)
    assert (outcome.verdict, outcome.reason.code) == ("DIFFERENT", OutcomeCode.BEYOND_MARGIN)
    assert outcome.equivalence is not None
    assert outcome.equivalence.difference == pytest.approx(0.5)


def test_the_margin_of_a_person_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, shifted(0.5), seeds=3, margin=0.6).verdict == "EQUIVALENT"
    strict = run(monkeypatch, shifted(0.01), seeds=3, margin_share=0.005)
    assert strict.verdict == "DIFFERENT"
    assert strict.equivalence is not None
    assert strict.equivalence.margin == pytest.approx(0.005, rel=0.1)
    assert strict.margin_source == "given"


def test_an_interval_wider_than_the_margin_is_undecided_and_says_how_many_seeds_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(script: str, seed: int) -> Answer:
        return losses(noisy(seed + (50 if script == "b.py" else 0))), "", 0

    outcome = run(monkeypatch, answer, seeds=3)
    assert (outcome.verdict, outcome.reason.code) == ("UNDECIDED", OutcomeCode.TOO_WIDE)
    needed = outcome.reason.facts["seeds_needed"]
    assert isinstance(needed, int)
    assert needed > 3
    assert outcome.equivalence is not None
    assert outcome.equivalence.detectable is not None


def test_the_seed_is_put_into_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(shifted(0.0))
    monkeypatch.setattr(outcomes, "run_recorded", machine)
    outcome = compare_outcomes(BASELINE, CANDIDATE, OutcomeSettings(seeds=2, first_seed=7))
    assert [command[-1] for command in machine.commands] == ["7", "7", "8", "8"]
    assert outcome.seed_argument


def test_a_program_that_seeds_itself_is_stopped_early(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Kernels that add in another order each time leave a difference in the last digits.
    outcome = run(
        monkeypatch, lambda script, seed: (losses(1.0 + 1e-8 * seed), "", 0), seeds=9, margin=0.1
    )
    assert (outcome.verdict, outcome.reason.code) == ("UNDECIDED", OutcomeCode.SEED_FIXED)
    assert len(outcome.trainings) == 3
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse, torch\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--random-seed', type=int)\n\ntorch.manual_seed(7)\n"
    )
    place, option = seeding_in(str(script))
    assert place is not None
    assert (place.line, option) == (5, "--random-seed")
    assert seeding_in("") == (None, "")


def test_a_last_layer_of_zeros_is_no_fixed_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first loss is ln 10 for every seed."""
    outcome = run(monkeypatch, lambda script, seed: ([2.302, *losses(noisy(seed))], "", 0), seeds=2)
    assert outcome.verdict == "EQUIVALENT"


def test_a_loss_that_breaks_in_the_candidate_alone_is_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(arm: str) -> Callable[[str, int], Answer]:
        return lambda script, seed: (
            losses(math.nan if (script, seed) == (arm, 1) else noisy(seed)), "", 0
        )  # fmt: skip

    candidate = run(monkeypatch, breaks("b.py"), seeds=3)
    assert (candidate.verdict, candidate.reason.code) == ("DIFFERENT", OutcomeCode.NOT_FINITE)
    assert candidate.reason.facts["seed"] == 1
    baseline = run(monkeypatch, breaks("a.py"), seeds=3)
    assert (baseline.verdict, baseline.reason.code) == ("UNDECIDED", OutcomeCode.NOT_FINITE)
    assert baseline.reason.facts["arm"] == "baseline"


def test_a_training_that_fails_is_reported_with_its_exit_and_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(script: str, seed: int) -> Answer:
        fails = (script, seed) == ("b.py", 1)
        return losses(noisy(seed)), "ValueError: no data\n" if fails else "", 3 if fails else 0

    ended: list[Training] = []
    outcome = run(monkeypatch, answer, seeds=4, watching=Watching(ended=ended.append))
    assert (outcome.verdict, outcome.reason.code) == ("UNDECIDED", OutcomeCode.TRAINING_FAILED)
    assert outcome.failed
    assert outcome.reason.cause is not None
    assert outcome.reason.cause.code == TrialFailure.EXITED
    assert outcome.reason.cause.facts == {"exit_code": 3, "last_line": "ValueError: no data"}
    assert [(one.arm, one.seed) for one in ended][-1] == ("candidate", 1)
    assert len(ended) == 4


def test_the_budget_begins_no_pair_that_would_not_end_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = run(monkeypatch, shifted(0.0), seeds=8, budget_s=75.0)
    assert outcome.seeds == (0, 1, 2)  # a pair takes 20 s
    assert outcome.spent_s == 60.0
    assert outcome.verdict == "EQUIVALENT"
    assert outcome.stopped is not None
    assert outcome.stopped.code == OutcomeCode.OUT_OF_TIME
    assert outcome.stopped.facts == {"seeds": 3, "planned": 8}


def test_a_budget_that_ends_in_the_first_pair_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcome = run(monkeypatch, shifted(0.0), seeds=8, budget_s=15.0)
    assert outcome.spent_s == 15.0
    assert (outcome.verdict, outcome.reason.code) == ("UNDECIDED", OutcomeCode.TOO_FEW_SEEDS)


def test_a_training_that_takes_too_long_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run(monkeypatch, shifted(0.0), seeds=2, timeout_s=5.0)
    assert outcome.reason.cause is not None
    assert outcome.reason.cause.code == TrialFailure.TIMED_OUT


def test_an_interrupt_reports_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(script: str, seed: int) -> Answer:
        if (script, seed) == ("b.py", 2):
            raise KeyboardInterrupt
        return shifted(0.5)(script, seed)

    outcome = run(monkeypatch, answer, seeds=5)
    assert outcome.interrupted
    assert outcome.seeds == (0, 1)
    assert outcome.verdict == "DIFFERENT"


def test_a_printed_metric_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(script: str, seed: int) -> Answer:
        return losses(noisy(seed)), f"epoch 1 val acc 0.1\nepoch 2 val acc {noisy(seed):.3f}\n", 0

    outcome = run(monkeypatch, answer, seeds=3, metric="val acc")
    assert outcome.source == "printed"
    assert outcome.verdict == "EQUIVALENT"
    assert outcome.doubts[0].code == OutcomeCode.COARSE
    assert outcome.equivalence is not None
    assert outcome.equivalence.ci_high == pytest.approx(0.001)


def test_the_printed_loss_is_compared_where_one_program_hides_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(script: str, seed: int) -> Answer:
        return losses(noisy(seed)) if script == "a.py" else [], f"loss: {noisy(seed):.4f}\n", 0

    outcome = run(monkeypatch, answer, seeds=2)
    assert outcome.source == "printed"
    assert outcome.value(outcome.trainings[0]) == pytest.approx(noisy(0), abs=1e-4)


def test_a_program_without_the_metric_is_refused_after_one_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(lambda script, seed: (losses(1.0), "val acc 0.5\n", 0))
    monkeypatch.setattr(outcomes, "run_recorded", machine)
    with pytest.raises(TargetError, match="val f1"):
        compare_outcomes(BASELINE, CANDIDATE, OutcomeSettings(metric="val f1"))
    assert len(machine.commands) == 1
    monkeypatch.setattr(outcomes, "run_recorded", Machine(lambda script, seed: ([], "done\n", 0)))
    with pytest.raises(TargetError, match="no loss"):
        compare_outcomes(BASELINE, CANDIDATE, OutcomeSettings())


def test_a_metric_that_is_missing_later_is_a_failed_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(script: str, seed: int) -> Answer:
        return losses(noisy(seed)), "" if seed == 2 else f"acc {noisy(seed)}\n", 0

    outcome = run(monkeypatch, answer, seeds=4, metric="acc")
    assert outcome.reason.code == OutcomeCode.TRAINING_FAILED
    assert outcome.reason.cause is not None
    assert outcome.reason.cause.code == OutcomeCode.NO_METRIC


def test_a_metric_that_never_varies_needs_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(script: str, seed: int) -> Answer:
        return losses(noisy(seed)), "acc 1.00\n", 0

    outcome = run(monkeypatch, answer, seeds=3, metric="acc")
    assert (outcome.verdict, outcome.reason.code) == ("UNDECIDED", OutcomeCode.SAME_VALUES)
    assert run(monkeypatch, answer, seeds=3, metric="acc", margin=0.02).verdict == "EQUIVALENT"


def test_trainings_of_different_lengths_are_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(script: str, seed: int) -> Answer:
        return losses(noisy(seed))[: 20 if seed == 0 else 8], "", 0

    outcome = run(monkeypatch, answer, seeds=2)
    assert {doubt.code for doubt in outcome.doubts} == {OutcomeCode.LOSSES_VARY}
    assert outcome.doubts[0].facts == {"arm": "baseline", "fewest": 8, "most": 20}


def test_one_seed_is_refused() -> None:
    with pytest.raises(UsageError):
        compare_outcomes(BASELINE, CANDIDATE, OutcomeSettings(seeds=1))


@pytest.mark.parametrize(
    ("line", "metric", "value", "digit"),
    [
        ("val acc: 0.912 (best 0.95)", "val acc", 0.912, 1e-3),
        ("Val Acc = -1.5e-3", "val acc", -1.5e-3, 1e-4),
        ("val acc (top 5) 91", "val acc (top 5)", 91.0, 1.0),
        ("val acc after the epoch 1,234.5 %", "val acc", 1234.5, 0.1),
        ("train loss 2.5, val loss 3.25", "", 3.25, 0.01),
        ("\x1b[1mloss\x1b[0m: \x1b[32m0.5\x1b[0m", "", 0.5, 0.1),
        ("loss nan", "", math.nan, 0.0),
        ("loss=-inf", "", -math.inf, 0.0),
        ("{'eval_loss': 0.25}", "eval_loss", 0.25, 0.01),
    ],
)
def test_the_last_number_after_the_text_is_read(
    line: str, metric: str, value: float, digit: float
) -> None:
    found = printed_number(iter(["loss 9 val acc 9\n", f"{line}\n", "done in 3 s\n"]), metric)
    assert found == (pytest.approx(value, nan_ok=True), pytest.approx(digit))


@pytest.mark.parametrize("line", ["lossless 3", "the loss function of 2020", "loss: financial"])
def test_words_that_only_contain_the_text_are_no_loss(line: str) -> None:
    assert printed_number(iter([line]), "") is None
