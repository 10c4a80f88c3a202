"""Whole trainings of two programs over several seeds, and whether they end the same.

Each seed trains the baseline and then the candidate, each in a process of its own that runs to its
end. The seed is set before the program's first draw, so that a pair has the same data order and
initial weights unless the program seeds itself. A program that does gets the seed as an argument:
`{seed}` in its arguments is replaced.
"""

import ast
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.comparison.program_recorder import RecordPlan, run_recorded
from ridgeline.equality.scripts import ProgramRecord
from ridgeline.errors import TargetError, UsageError
from ridgeline.harness.usercode.child_process import Ended
from ridgeline.measure.clock import Deadline
from ridgeline.records.facts import Place, Reason, because
from ridgeline.records.parity import (
    Arm,
    Equivalence,
    OutcomeCode,
    OutcomeVerdict,
    Source,
    Training,
    TrainingOutcome,
)
from ridgeline.records.run import Target
from ridgeline.records.trial import TrialFailure
from ridgeline.source.file import last_name, parsed, text_of
from ridgeline.statistics.equivalence import equivalence

DEFAULT_SEEDS = 5
MIN_SEEDS = 2
"""One pair has no spread."""
FINAL_SHARE = 0.1
"""The last tenth of the losses (100 at most) makes the final loss: a single one is the loss of one
batch."""
FIRST_LOSSES = 3
"""Losses that show whether the seed has an effect. The first alone does not: with a last layer of
zeros it is the same for every seed."""
SEED_PLACE = "{seed}"
MAX_EQUAL_LOSS_DIFFERENCE = 1e-5
"""First losses that agree to this share for two seeds come from the same weights and data; kernels
that add in another order each time differ by less."""
_SEEDING_CALLS = {"manual_seed", "manual_seed_all", "seed_everything", "set_seed", "seed"}
_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    r"|[-+]?(?<![A-Za-z])(?:nan|inf(?:inity)?)(?![A-Za-z])"
)
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class OutcomeSettings(Struct, frozen=True, kw_only=True):
    seeds: int = DEFAULT_SEEDS
    first_seed: int = 0
    metric: str = ""
    """The text after which the compared number is printed; "": the final loss."""
    margin: float | None = None
    """Differences below it do not matter. None: the spread between the baseline's seeds."""
    margin_share: float | None = None
    """The margin as a share of the baseline's mean."""
    deadline: Deadline | None = None
    """When the trainings have to be over; None: never."""
    timeout_s: float = math.inf
    """Time limit of one training."""
    device: str | None = None
    """ "cpu" hides the GPUs; "cuda:1" shows only that one."""


class Watching(Struct, frozen=True):
    """Says where the trainings report how far they are."""

    begins: Callable[[Arm, int], None] = lambda arm, seed: None
    """Called with the program and the seed that are trained now."""
    ended: Callable[[Training], None] = lambda training: None
    """Called with each finished training."""


class _Stopped(Exception):
    """The trainings end before every seed was trained."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.code)
        self.reason = reason


def compare_outcomes(
    baseline: Target,
    candidate: Target,
    settings: OutcomeSettings,
    watching: Watching | None = None,
) -> TrainingOutcome:
    """Train both programs to their end for each seed, and judge whether they end the same. Ctrl-C
    and the deadline end the trainings; what is known by then is judged."""
    if settings.seeds < MIN_SEEDS:
        raise UsageError(
            f"{settings.seeds} seeds cannot show how far trainings differ by chance",
            f"{MIN_SEEDS} are needed, and {DEFAULT_SEEDS} or more are better: --seeds 5",
        )
    deadline = settings.deadline or Deadline(math.inf)
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        trainings = _Trainings(
            {"baseline": baseline, "candidate": candidate},
            settings, deadline, Path(folder), watching or Watching(),
        )  # fmt: skip
        stopped = trainings.run()
    finished = trainings.finished
    outcome = judged(
        TrainingOutcome(
            baseline=_script_of(baseline) or baseline.name,
            candidate=_script_of(candidate) or candidate.name, metric=settings.metric,
            planned=settings.seeds, trainings=tuple(finished), stopped=stopped,
            verdict="UNDECIDED", reason=because(OutcomeCode.TOO_FEW_SEEDS, seeds=0),
            seed_argument=any(SEED_PLACE in word for word in baseline.arguments),
            spent_s=deadline.spent_s(),
        ),
        settings,
    )  # fmt: skip
    if outcome.reason.code == OutcomeCode.SEED_FIXED:
        place, argument = seeding_in(_script_of(baseline))
        facts = {**outcome.reason.facts, "place": str(place or ""), "argument": argument}
        outcome = replace(outcome, reason=Reason(outcome.reason.code, facts))
    return outcome


class _Trainings:
    """Trains both programs, seed by seed."""

    def __init__(
        self, targets: dict[Arm, Target], settings: OutcomeSettings, deadline: Deadline,
        folder: Path, watching: Watching,
    ) -> None:  # fmt: skip
        self._targets = targets
        self._settings = settings
        self._deadline = deadline
        self._folder = folder
        self._watching = watching
        self.finished: list[Training] = []

    def run(self) -> Reason | None:
        """Run all trainings, and return why they ended before; None if they did not. A training
        that fails is among the finished ones, and no other is begun."""
        settings = self._settings
        pair_s = 0.0
        done = 0
        try:
            for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
                if self._deadline.left_s() < pair_s:
                    raise _Stopped(_early(OutcomeCode.OUT_OF_TIME, done, settings))
                pair_s = 0.0
                arms: tuple[Arm, ...] = ("baseline", "candidate")
                for arm in arms:
                    training = self._train(arm, seed, done)
                    pair_s += training.wall_s
                    if training.failure is not None:
                        return None
                    if arm == "baseline" and seed_is_fixed(_of("baseline", self.finished)):
                        return None
                done += 1
        except _Stopped as ended:
            return ended.reason
        except KeyboardInterrupt:
            return _early(OutcomeCode.INTERRUPTED, done, settings)
        return None

    def _train(self, arm: Arm, seed: int, done: int) -> Training:
        self._watching.begins(arm, seed)
        home = self._folder / f"{arm}-{seed}"
        home.mkdir()
        target = self._targets[arm]
        arguments = tuple(word.replace(SEED_PLACE, str(seed)) for word in target.arguments)
        printed = home / "output"
        left_s = self._deadline.left_s()
        limit_s = min(self._settings.timeout_s, left_s)
        ended, records = run_recorded(
            replace(target, arguments=arguments),
            home,
            RecordPlan(seed=seed),
            # One program must not find ready what the other compiled.
            compiled=self._folder / f"inductor-{arm}",
            limit_s=limit_s,
            device=self._settings.device,
            keep_output=printed,
        )
        if ended.code is None and left_s <= self._settings.timeout_s:
            raise _Stopped(_early(OutcomeCode.OUT_OF_TIME, done, self._settings))
        training = _read(records, printed, self._settings.metric)
        training = replace(training, arm=arm, seed=seed, wall_s=ended.wall_ns / 1e9)
        self.finished.append(training)
        if ended.code != 0:
            failure = _failure(ended, limit_s)
        elif done and not self._is_comparable():
            failure = because(OutcomeCode.NO_METRIC, metric=self._settings.metric)
        else:
            failure = None
        training = self.finished[-1] = replace(training, failure=failure)
        self._watching.ended(training)
        if training.failure is None and not done and not self._is_comparable():
            raise self._without_metric(arm, ended)
        return training

    def _is_comparable(self) -> bool:
        """Return whether all trainings so far show the same thing that can be compared."""
        return bool(_source(self.finished, self._settings.metric))

    def _without_metric(self, arm: Arm, ended: Ended) -> TargetError:
        metric = self._settings.metric
        name = self._targets[arm].name
        lines = ["it printed at last:", *ended.last_lines] if ended.last_lines else []
        if metric:
            return TargetError(
                f"{name} printed no number after {metric!r}",
                "\n  ".join(["name the text before the number as it is printed", *lines]),
            )
        return TargetError(
            f"{name} showed no loss to compare: neither did it call backward where that can be "
            "seen, nor did it print a number after 'loss'",
            "\n  ".join(['name what both programs print: --metric "val acc"', *lines]),
        )


def _early(code: OutcomeCode, done: int, settings: OutcomeSettings) -> Reason:
    return because(code, seeds=done, planned=settings.seeds)


def _failure(ended: Ended, limit_s: float) -> Reason:
    if ended.code is None:
        return because(TrialFailure.TIMED_OUT, limit_s=limit_s, step=None)
    if ended.signal:
        return because(TrialFailure.KILLED, signal=ended.signal)
    last_line = ended.last_lines[-1].strip()[:200] if ended.last_lines else ""
    return because(TrialFailure.EXITED, exit_code=ended.code, last_line=last_line)


def _read(records: Sequence[ProgramRecord], printed: Path, metric: str) -> Training:
    """Return what a training left behind. Each process of several has its own losses, of its own
    part of the batches; their mean is the loss of the training."""
    records = [record for record in records if record.loss_count]
    finals = [_final(record) for record in records]
    with open(printed, encoding="utf-8", errors="replace") as lines:
        number = printed_number(lines, metric)
    value, resolution = number or (None, 0.0)
    return Training(
        arm="baseline",
        seed=0,
        final_loss=fmean(loss for loss, _ in finals) if finals else None,
        averaged=finals[0][1] if finals else 0,
        losses=records[0].loss_count if records else 0,
        first_losses=records[0].losses[:FIRST_LOSSES] if records else (),
        printed=value,
        resolution=resolution,
    )


def _final(record: ProgramRecord) -> tuple[float, int]:
    """Return the final loss, and how many losses it is the mean of."""
    last = record.last_losses[-max(round(FINAL_SHARE * record.loss_count), 1) :]
    return fmean(last), len(last)


def printed_number(lines: Iterator[str], metric: str) -> tuple[float, float] | None:
    """Return the last number that is printed after the metric's text, and one unit of its last
    digit; None if there is none.

    After the text of a person's own, words may stand before the number. After "loss", which is
    looked for if nothing was named, only punctuation may."""
    between = r"[^\d\n]*?" if metric else r"[^\w\n]*?"
    pattern = re.compile(re.escape(metric or "loss") + rf"{between}({_NUMBER})", re.IGNORECASE)
    found = None
    for line in lines:
        for match in pattern.finditer(_COLOR.sub("", line)):
            found = match[1]
    if found is None:
        return None
    text = found.replace(",", "")
    return float(text), _last_digit(text)


def _last_digit(text: str) -> float:
    mantissa, _, exponent = text.lower().partition("e")
    if not any(character.isdigit() for character in mantissa):  # nan, inf
        return 0.0
    decimals = len(mantissa.partition(".")[2])
    return float(10.0 ** (int(exponent or 0) - decimals))


def seed_is_fixed(trainings: Sequence[Training]) -> bool:
    """Return whether two seeds begin with the same losses: then every seed trains the same."""
    if len(trainings) < 2:
        return False
    first, second = trainings[0], trainings[-1]
    pairs = list(zip(first.first_losses, second.first_losses, strict=False))
    return (
        bool(pairs)
        and first.losses == second.losses
        and all(math.isclose(a, b, rel_tol=MAX_EQUAL_LOSS_DIFFERENCE) for a, b in pairs)
    )


def judged(outcome: TrainingOutcome, settings: OutcomeSettings) -> TrainingOutcome:
    """Return the outcome of these trainings with its verdict."""
    well = [one for one in outcome.trainings if one.failure is None]
    outcome = replace(outcome, source=_source(well, outcome.metric))
    failed = next((one for one in outcome.trainings if one.failure is not None), None)
    if failed is not None:
        reason = because(
            OutcomeCode.TRAINING_FAILED, arm=failed.arm, seed=failed.seed, cause=failed.failure
        )
        return replace(outcome, reason=reason)
    outcome = replace(outcome, doubts=tuple(_losses_vary(outcome)))
    baseline = outcome.of("baseline")
    if seed_is_fixed(baseline):
        value = outcome.value(baseline[0])
        reason = because(OutcomeCode.SEED_FIXED, value=value, place="", argument="")
        return replace(outcome, reason=reason)
    before, after = _values(outcome, "baseline"), _values(outcome, "candidate")
    seeds = tuple(seed for seed in before if seed in after)
    outcome = replace(outcome, seeds=seeds)
    broken = _not_finite(outcome)
    if broken is not None:
        verdict: OutcomeVerdict = "DIFFERENT" if broken.arm == "candidate" else "UNDECIDED"
        reason = because(
            OutcomeCode.NOT_FINITE, arm=broken.arm, seed=broken.seed,
            value=str(outcome.value(broken)),
        )  # fmt: skip
        return replace(outcome, verdict=verdict, reason=reason)
    if len(seeds) < MIN_SEEDS:
        return replace(outcome, reason=because(OutcomeCode.TOO_FEW_SEEDS, seeds=len(seeds)))
    return _tested(outcome, settings, before, after)


def _values(outcome: TrainingOutcome, arm: Arm) -> dict[int, float]:
    """Return what is compared of each training, by its seed."""
    values = {one.seed: outcome.value(one) for one in outcome.of(arm)}
    return {seed: value for seed, value in values.items() if value is not None}


def _source(trainings: Sequence[Training], metric: str) -> Source:
    """Return what is compared: what all trainings show. A program that records its steps as a CUDA
    graph calls backward where the capture does not see it, but still prints its loss."""
    if not trainings:
        return ""
    if not metric and all(one.final_loss is not None for one in trainings):
        return "losses"
    return "printed" if all(one.printed is not None for one in trainings) else ""


def _losses_vary(outcome: TrainingOutcome) -> Iterator[Reason]:
    """Yield the programs whose trainings have different lengths: they may continue from files that
    an earlier one wrote."""
    arms: tuple[Arm, ...] = ("baseline", "candidate")
    for arm in arms:
        counts = [one.losses for one in outcome.of(arm)]
        if counts and min(counts) != max(counts):
            yield because(
                OutcomeCode.LOSSES_VARY, arm=arm, fewest=min(counts), most=max(counts)
            )  # fmt: skip


def _not_finite(outcome: TrainingOutcome) -> Training | None:
    """Return a training that ended with nan or inf, of the baseline if one of its own did."""
    broken = [
        one
        for one in (*outcome.of("baseline"), *outcome.of("candidate"))
        if (value := outcome.value(one)) is not None and not math.isfinite(value)
    ]
    return broken[0] if broken else None


def _tested(
    outcome: TrainingOutcome,
    settings: OutcomeSettings,
    baseline: dict[int, float],
    candidate: dict[int, float],
) -> TrainingOutcome:
    values = [baseline[seed] for seed in outcome.seeds]
    differences = [candidate[seed] - baseline[seed] for seed in outcome.seeds]
    spread = stdev(values) if min(values) != max(values) else 0.0
    is_given = settings.margin is not None or settings.margin_share is not None
    margin = settings.margin
    if settings.margin_share is not None:
        margin = settings.margin_share * abs(fmean(values))
    elif margin is None:
        margin = spread
    resolution = 0.0
    if outcome.source == "printed":
        resolution = max(one.resolution for one in outcome.trainings)
    test = equivalence(differences, margin or None, resolution=resolution)
    is_coarse = resolution > 0 and test.spread < resolution / 2
    doubts = [because(OutcomeCode.COARSE, resolution=resolution)] if is_coarse else []
    return replace(
        outcome,
        verdict=test.verdict,
        reason=_reason(test, spread, values[0]),
        equivalence=test,
        margin_source="given" if is_given else "spread between seeds",
        seed_spread=spread,
        doubts=(*outcome.doubts, *doubts),
    )


def _reason(test: Equivalence, spread: float, value: float) -> Reason:
    low, high, margin = test.ci_low, test.ci_high, test.margin
    if test.verdict == "EQUIVALENT":
        if low == high == 0:
            return because(OutcomeCode.IDENTICAL, seeds=test.pairs)
        return because(OutcomeCode.WITHIN_MARGIN, ci_low=low, ci_high=high, margin=margin)
    if test.verdict == "DIFFERENT":
        is_beyond = margin is not None and min(abs(low), abs(high)) >= margin
        code = OutcomeCode.BEYOND_MARGIN if is_beyond else OutcomeCode.DIFFERS
        return because(
            code, difference=test.difference, ci_low=low, ci_high=high, margin=margin
        )  # fmt: skip
    if margin is None:
        return because(OutcomeCode.SAME_VALUES, value=value)
    needed = test.pairs_needed
    return because(
        OutcomeCode.TOO_WIDE, ci_low=low, ci_high=high, margin=margin, seeds_needed=needed
    )  # fmt: skip


def seeding_in(script: str) -> tuple[Place | None, str]:
    """Return the first line of a script that sets a seed, and the option by which the script takes
    one ("--seed"; "" if there is none)."""
    file = parsed(text_of(Path(script)), script) if script else None
    if file is None:
        return None, ""
    lines, options = list[int](), list[str]()
    for node in ast.walk(file.module):
        if isinstance(node, ast.Call) and last_name(node) in _SEEDING_CALLS and node.args:
            lines.append(node.lineno)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            options += re.findall(r"^--[\w-]*seed[\w-]*$", node.value)
    return Place(script, min(lines)) if lines else None, options[0] if options else ""


def _script_of(target: Target) -> str:
    words = [target.name, *target.arguments] if target.kind != "code" else []
    return next((word for word in words if word.endswith(".py") and os.path.isfile(word)), "")


def _of(arm: Arm, trainings: Sequence[Training]) -> list[Training]:
    return [training for training in trainings if training.arm == arm]
