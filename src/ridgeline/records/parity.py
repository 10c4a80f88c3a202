"""Says whether a program with fixes computes what the unchanged one does, and how that is known: by
its steps (`Parity`), and by whole trainings (`TrainingOutcome`)."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Reason

Alters = Literal["nothing", "rounding", "semantics"]
"""What a fix may alter."""
Equality = Literal[
    "equal",  # every check that was asked for passed
    "weak",  # what could be compared is equal, but it is not enough to be sure
    "differs",
    "unknown",  # nothing could be compared
]
MEANS = "mean losses"
"""The check that stands for losses step by step if samples are drawn in another order."""


class Check(Struct, frozen=True, kw_only=True):
    """One comparison of a trial with the baseline's."""

    what: str
    """losses, gradient norms, applied steps, samples, parameters, buffers, evaluation"""
    passed: bool
    text: str
    """A sentence with its numbers: largest difference 2e-7 at step 3, allowed 1e-5."""
    difference: float | None = None
    allowed: float | None = None
    step: int | None = None
    batches: int | None = None
    """Batches whose outputs were compared."""
    doubt: bool = False
    """Whether the difference lies a little beyond the noise band: passed, but the answer is
    weak."""


class Parity(Struct, frozen=True, kw_only=True):
    equality: Equality
    why: str
    """A sentence for the table."""
    checks: tuple[Check, ...] = ()
    missing: tuple[str, ...] = ()
    """What could not be compared, and why, such as that the loader draws in its workers."""

    @property
    def is_proven(self) -> bool:
        """Whether the results are known to be equal, be it weakly."""
        return self.equality in ("equal", "weak")


OutcomeVerdict = Literal["EQUIVALENT", "DIFFERENT", "UNDECIDED"]
Arm = Literal["baseline", "candidate"]
Source = Literal["losses", "printed", ""]
"""Whether the losses that the capture sees are compared, or what is printed."""


class OutcomeCode(StrEnum):
    """Says why whole trainings of two programs have their verdict, and what makes it doubtful."""

    WITHIN_MARGIN = "outcome.within-margin"  # ci_low, ci_high, margin
    IDENTICAL = "outcome.identical"  # seeds: every pair ended with the same value
    BEYOND_MARGIN = "outcome.beyond-margin"  # difference, ci_low, ci_high, margin
    DIFFERS = "outcome.differs"  # the same: it may be smaller than the margin
    TOO_WIDE = "outcome.too-wide"  # ci_low, ci_high, margin, seeds_needed
    SAME_VALUES = "outcome.same-values"  # value: of every seed of the baseline
    SEED_FIXED = "outcome.seed-fixed"  # value, place, argument
    NOT_FINITE = "outcome.not-finite"  # arm, seed, value
    TRAINING_FAILED = "outcome.training-failed"  # arm, seed; cause
    NO_METRIC = "outcome.no-metric"  # metric; a failure of a training
    TOO_FEW_SEEDS = "outcome.too-few-seeds"  # seeds
    # Why not every seed was trained.
    OUT_OF_TIME = "outcome.out-of-time"  # seeds, planned
    INTERRUPTED = "outcome.interrupted"  # seeds, planned
    # Doubts.
    LOSSES_VARY = "outcome.losses-vary"  # arm, fewest, most: losses of its trainings
    COARSE = "outcome.coarse"  # resolution: the last digit that is printed decides


class Equivalence(Struct, frozen=True, kw_only=True):
    """Two one-sided t tests of paired values, and what they could have shown."""

    verdict: OutcomeVerdict
    pairs: int
    difference: float
    """Mean of candidate minus baseline."""
    ci_low: float
    ci_high: float
    level: float = 0.9
    """The interval's level; two one-sided tests at 5 % accept what a 90 % interval lies within."""
    margin: float | None
    """Differences below it do not matter. None: it could not be set."""
    spread: float
    """Standard deviation of the differences."""
    detectable: float | None = None
    """The true difference that so many pairs show in 80 % of cases; None if no spread is known."""
    equivalence_power: float | None = None
    """Probability that programs without any difference are found EQUIVALENT."""
    pairs_needed: int | None = None
    """Pairs that find programs without any difference EQUIVALENT in 80 % of cases."""


class Training(Struct, frozen=True, kw_only=True):
    """One whole training."""

    arm: Arm
    seed: int
    final_loss: float | None = None
    """Mean of the last losses that backward was called on; None if none was seen."""
    averaged: int = 0
    """How many losses it is the mean of."""
    losses: int = 0
    """How many losses were seen in all."""
    first_losses: tuple[float, ...] = ()
    printed: float | None = None
    """The last number that was printed after the name of the metric."""
    resolution: float = 0.0
    """One unit of the last printed digit of `printed`."""
    wall_s: float = 0.0
    failure: Reason | None = None
    """Why the training failed: a `TrialFailure` with its facts."""


class TrainingOutcome(Struct, frozen=True, kw_only=True):
    """Says whether whole trainings of two programs end the same."""

    baseline: str
    candidate: str
    metric: str = ""
    """Text after which the compared number is printed; "" if none was asked for."""
    source: Source = ""
    planned: int
    """Seeds that were asked for."""
    seeds: tuple[int, ...] = ()
    """Seeds for which both programs were trained."""
    trainings: tuple[Training, ...] = ()
    verdict: OutcomeVerdict
    reason: Reason
    """A code of `OutcomeCode`."""
    equivalence: Equivalence | None = None
    """None if the trainings could not be judged."""
    margin_source: Literal["given", "spread between seeds"] = "spread between seeds"
    seed_spread: float | None = None
    """Standard deviation of the baseline's values over its seeds."""
    seed_argument: bool = False
    """Whether the seed was put into the program's arguments in the place of `{seed}`."""
    doubts: tuple[Reason, ...] = ()
    stopped: Reason | None = None
    """Why not every seed was trained; None if all were."""
    spent_s: float = 0.0

    @property
    def failed(self) -> bool:
        return self.reason.code == OutcomeCode.TRAINING_FAILED

    @property
    def interrupted(self) -> bool:
        return self.stopped is not None and self.stopped.code == OutcomeCode.INTERRUPTED

    def value(self, training: Training) -> float | None:
        """Return what is compared of a training; None if it failed, or did not show it."""
        if training.failure is not None:
            return None
        return training.final_loss if self.source == "losses" else training.printed

    def of(self, arm: Arm) -> tuple[Training, ...]:
        return tuple(training for training in self.trainings if training.arm == arm)
