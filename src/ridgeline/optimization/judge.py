"""Judges whether the program with fixes computes what it computes without them. The standard is the
baseline's own trials, and what rounding alone does to them."""

from collections.abc import Callable, Sequence
from statistics import median

from msgspec.structs import replace

from ridgeline.equality.trials.parity import compare
from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.bench import Bench
from ridgeline.optimization.candidates import Candidate, alters, asked, precision
from ridgeline.optimization.measure import MIN_TIMED_STEPS, Measure, is_timed
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import SearchCode
from ridgeline.records.parity import MEANS, Parity
from ridgeline.records.trial import Asked, Draws, Trial

BASELINE_RUNS = 3
"""Runs of the unperturbed baseline, if there is time."""
PERTURBED = "baseline, perturbed by one rounding unit"
ULP = 2.0**-23
_ROUNDING = {"tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""How far a type rounds. The baseline is also perturbed by this much."""
MAX_WATCHED_STEPS = 8
MAX_LOSS_DEVIATION = 0.05
"""The first losses of a program that begins the same way each time lie closer than this."""
MAX_BASELINE_SHARE = 0.25
"""Share of the budget for the baseline. A program that starts slowly gets one repeat less."""
OTHER_DRAWS = "other random numbers are drawn under it"
NOT_COMPARED = "there was no time left to compare it with the same random numbers"
DRAWN_ALIKE = "compared with compiled code drawing the random numbers that eager code draws"
WITHOUT_DROPOUT = "compared without dropout, because the fix makes it drop other elements"


class Judge:
    def __init__(self, bench: Bench, measure: Measure, doing: Callable[[str], None]) -> None:
        self._bench = bench
        self._measure = measure
        self._doing = doing
        self.baseline: list[Trial] = []
        self._postponed: list[float] = []
        """Perturbed runs that are made once a fix that rounds is to be judged."""
        self._draws = DrawsJudge(bench, doing)
        self._repeats_if_needed = False
        """Whether the baseline is run again only once results differ from its single run."""
        self._on_trial: Callable[[Outcome], None] = lambda outcome: None

    def learn(
        self, possible: Sequence[Candidate], exact: bool, on_trial: Callable[[Outcome], None]
    ) -> Reason | None:
        """Run the baseline; return why there is nothing to compare with, or None.

        `possible` are the fixes that may be tried: the coarsest precision among them says how far
        the perturbed runs have to be perturbed.
        """
        self._on_trial = on_trial
        coarse = None if exact else _ROUNDING.get(precision(one.fix for one in possible))
        perturbed = [ULP, *([coarse] if coarse else [])]
        began_s = self._bench.left_s()
        failure = self._run_baseline(0.0)
        further = [*perturbed, *([0.0] * (BASELINE_RUNS - 1))]
        spent_s = began_s - self._bench.left_s()
        slow = spent_s * (1 + len(perturbed)) > MAX_BASELINE_SHARE * began_s
        if slow and _alters_nothing(sorted(possible, key=lambda one: one.promise)[-1:]):
            # Evidence that the most promising fix does not need waits for a fix that does.
            further, self._postponed = [0.0], [] if exact else perturbed
        for number, jitter in enumerate(further, 1):
            left_s = self._bench.left_s()
            spent_s = began_s - left_s
            if failure is not None or left_s <= 0:
                break  # no fix will be tried
            if number > 2 and spent_s * (number + 1) / number > MAX_BASELINE_SHARE * began_s:
                break  # two unperturbed runs would be better, but the fixes need the time
            failure = self._run_baseline(jitter)
        return failure

    def learn_for_proof(
        self,
        fixes: Sequence[Candidate],
        exact: bool,
        on_trial: Callable[[Outcome], None] = lambda outcome: None,
    ) -> Reason | None:
        """Run what judging these fixes needs, once a race has proposed them: the baseline once, and
        perturbed runs only if one of them rounds. Return why there is nothing to compare with, or
        None. A repeat of the baseline is run later, if the results differ from its single run."""
        self._on_trial = on_trial
        self._repeats_if_needed = True
        kept = [one.fix for one in fixes]
        coarse = None if exact else _ROUNDING.get(precision(kept))
        failure = self._run_baseline(0.0)
        jitters = [ULP, *([coarse] if coarse else [])]
        if failure is not None or alters(kept) != "rounding":
            self._postponed = [] if exact else jitters
            return failure
        self._doing(PERTURBED)
        outcomes = self._bench.perturbed(jitters)
        failures = [self._note_baseline(*pair) for pair in zip(outcomes, jitters, strict=True)]
        return next((failure for failure in failures if failure is not None), None)

    def add_repeat(self, trial: Trial) -> None:
        """Add a run of the unperturbed baseline that a contest has made."""
        if trial not in self.baseline:
            self.baseline.append(trial)

    def postponed_s(self, fixes: Sequence[Candidate]) -> float:
        """Return what judging these fixes will take besides their own trials."""
        runs = 0 if _alters_nothing(fixes) else len(self._postponed)
        return runs * self._bench.cost_s(())

    def _run_baseline(self, jitter: float) -> Reason | None:
        self._doing(PERTURBED if jitter else "baseline")
        return self._note_baseline(self._bench.trial((), jitter=jitter), jitter)

    def _note_baseline(self, outcome: Outcome, jitter: float) -> Reason | None:
        if outcome.cut:
            return because(SearchCode.OUT_OF_TIME if self.baseline else SearchCode.NO_BASELINE_TIME)
        if outcome.trial is None:
            run = len(self.baseline) + 1
            return because(SearchCode.BASELINE_RUN_FAILED, cause=outcome.failure, run=run)
        if not (is_timed(outcome.trial) or jitter):
            return because(
                SearchCode.BASELINE_TOO_SHORT, ended=outcome.trial.ended,
                needed_steps=MAX_WATCHED_STEPS + 1 + MIN_TIMED_STEPS,
            )  # fmt: skip
        if self._measure.of(outcome.trial) is None and not jitter:
            return because(SearchCode.NO_MEASURE, measure=self._measure.name)
        self.baseline.append(outcome.trial)
        if not jitter:
            self._on_trial(outcome)
        return None

    def varies(self) -> Reason | None:
        """Return what differs each time the baseline runs, because it is not seeded; else None."""
        first = [trial.watched[0] for trial in self.baseline if trial.watched]
        if len({step.batch_sum for step in first}) > 1:
            return because(SearchCode.DATA_VARIES)
        plain = [trial.watched[0] for trial in self.baseline if trial.watched and not trial.jitter]
        losses = [step.loss for step in plain if step.loss is not None]
        limit = MAX_LOSS_DEVIATION * abs(max(losses, key=abs, default=0.0))
        if losses and max(losses) - min(losses) > limit:
            return because(SearchCode.FIRST_LOSS_VARIES)
        return None

    @property
    def peak_bytes(self) -> int:
        return round(median(trial.peak_bytes for trial in self.baseline)) if self.baseline else 0

    def parity(self, trials: Trial | Sequence[Trial], fixes: Sequence[Candidate]) -> Parity:
        return _compared(self.baseline, trials, fixes)

    def missing(self, trial: Trial, tried: Sequence[Candidate]) -> Reason | None:
        """Return why one of the fixes was not applied; None if all were."""
        applied = {one.fix for one in trial.applied}
        for candidate in tried:
            if candidate.fix.id not in applied:
                reasons = [n.reason for n in trial.not_applied if n.fix == candidate.fix.id]
                return reasons[0] if reasons else because(SearchCode.NOTHING_TO_CHANGE)
        return None

    def compared(self, trial: Trial, fixes: Sequence[Candidate]) -> Parity:
        """Judge the first trial of a set of fixes, under which other random numbers may be drawn
        than in the baseline."""
        while self._postponed and not _alters_nothing(fixes) and self._bench.left_s() > 0:
            self._run_baseline(self._postponed.pop(0))
        parity = self.parity(trial, fixes)
        draws = any(one.draws and one.watched for one in self.baseline)
        if parity.is_proven:
            return parity
        if not draws or _alters_nothing(fixes):
            return self.parity(trial, fixes) if self._repeated() else parity
        return self._draws.compared(self.baseline, trial, fixes, parity)

    def _repeated(self) -> bool:
        """Return whether the baseline has been run again, because a single run does not show how
        far the program differs from itself."""
        alone = sum(not trial.jitter for trial in self.baseline) == 1
        if not (self._repeats_if_needed and alone):
            return False
        has_time = self._bench.cost_s(()) < self._bench.left_s() - self._bench.held_s
        return has_time and self._run_baseline(0.0) is None


class DrawsJudge:
    """Judges fixes under which the program draws other random numbers, so that its results show
    nothing. Compiled code draws in another order and moves the generator differently, so that noise
    in the model, dropout, and whatever the loop draws from the same generator afterwards (batches,
    noise, shuffles) are others. Another layout, and another type or kernel on a GPU, draw another
    dropout mask.

    Where the results differ, the fixed program gets a trial in which compiled code draws as eager
    code does. If that is not enough, the fixed and the unchanged program run without dropout."""

    def __init__(self, bench: Bench, doing: Callable[[str], None]) -> None:
        self._bench = bench
        self._doing = doing
        self._baseline: list[Trial] = []
        """Trials of the unchanged program without dropout."""
        self._impossible = False
        """Whether the program cannot be run without dropout, or has none."""
        self._known: list[tuple[tuple[Asked, ...], Parity]] = []
        """Verdicts on sets of fixes: the whole is judged again when it is confirmed."""

    def compared(
        self,
        baseline: Sequence[Trial],
        trial: Trial,
        fixes: Sequence[Candidate],
        differs: Parity,
    ) -> Parity:
        """`differs` is the verdict on the trial as it is, which stands if random numbers do not
        explain it. What they cannot explain (skipped steps, losses that do not fall) is judged by
        that trial, too. Other data are explained only where a model is compiled."""
        loosely = _compared(baseline, trial, fixes, OTHER_DRAWS, other_data=_compiles(fixes))
        if not loosely.is_proven or not trial.draws:
            return differs
        strictly = self._verdict_on(asked(fixes)) or self._strictly(baseline, fixes)
        if strictly is None and self._impossible:
            return differs
        if strictly is None:
            return replace(differs, why=f"{differs.why}; {NOT_COMPARED}")
        self._known.append((asked(fixes), strictly))
        if not strictly.is_proven:
            return strictly
        means = [check for check in loosely.checks if check.what == MEANS]
        return replace(strictly, checks=(*strictly.checks, *means))

    def _verdict_on(self, fixes: Sequence[Asked]) -> Parity | None:
        """Return the verdict on these fixes, or on more that were equal together: one of them has
        been dropped since."""
        every = [(of, parity) for of, parity in self._known if all(one in of for one in fixes)]
        fitting = (parity for of, parity in every if len(of) == len(fixes) or parity.is_proven)
        return next(fitting, None)

    def _strictly(self, baseline: Sequence[Trial], fixes: Sequence[Candidate]) -> Parity | None:
        """Return the verdict on trials that draw the same random numbers; None if this is
        impossible, or if there was no time."""
        alone = all(one.fix.slot == "compile" or one.fix.alters == "nothing" for one in fixes)
        compiled = _compiles(fixes)
        # A fix that rounds draws another dropout mask on a GPU, however the compiled code draws.
        eager_first = compiled and (alone or baseline[0].device == "cpu" or self._impossible)
        parity = self._drawn_as_eager(baseline, fixes) if eager_first else None
        if parity is not None and parity.is_proven:
            return parity
        if not self._impossible and self._run_without_dropout(baseline, fixes):
            without = self._with_draws("none", self._baseline, fixes, WITHOUT_DROPOUT)
            return without or parity
        if self._impossible and compiled and not eager_first:  # it draws, and has no dropout
            return self._drawn_as_eager(baseline, fixes)
        return parity

    def _drawn_as_eager(
        self, baseline: Sequence[Trial], fixes: Sequence[Candidate]
    ) -> Parity | None:
        if not self._has_time(fixes, 0):
            return None
        return self._with_draws("eager", baseline, fixes, DRAWN_ALIKE)

    def _with_draws(
        self, draws: Draws, baseline: Sequence[Trial], fixes: Sequence[Candidate], how: str
    ) -> Parity | None:
        trial = self._bench.trial(asked(fixes), draws=draws).trial
        if trial is None:
            return None
        parity = _compared(baseline, trial, fixes)
        return replace(parity, why=f"{parity.why}; {how}")

    def _run_without_dropout(self, baseline: Sequence[Trial], fixes: Sequence[Candidate]) -> bool:
        """Run the unchanged program without dropout, unperturbed and perturbed as the baseline was.
        Return whether it has been run so."""
        known = {trial.jitter for trial in self._baseline}
        missing = [jitter for jitter in dict.fromkeys(t.jitter for t in baseline)
                   if jitter not in known]  # fmt: skip
        if not self._has_time(fixes, len(missing)):
            return False
        for jitter in missing:
            self._doing("baseline, without dropout")
            outcome = self._bench.trial((), jitter=jitter, draws="none")
            if outcome.trial is None or outcome.trial.undropped == 0:
                self._impossible = not outcome.cut
                return False
            self._baseline.append(outcome.trial)
        return True

    def _has_time(self, fixes: Sequence[Candidate], baseline_runs: int) -> bool:
        takes_s = self._bench.cost_s(asked(fixes)) + baseline_runs * self._bench.cost_s(())
        return takes_s < self._bench.left_s() - self._bench.held_s


def _alters_nothing(fixes: Sequence[Candidate]) -> bool:
    return all(one.fix.alters == "nothing" for one in fixes)


def _compiles(fixes: Sequence[Candidate]) -> bool:
    return any(one.fix.slot == "compile" for one in fixes)


def _compared(
    baseline: Sequence[Trial],
    trials: Trial | Sequence[Trial],
    candidates: Sequence[Candidate],
    redrawn: str = "",
    other_data: bool = False,
) -> Parity:
    fixes = [one.fix for one in candidates]
    return compare(baseline, trials, alters(fixes), precision(fixes), redrawn, other_data)
