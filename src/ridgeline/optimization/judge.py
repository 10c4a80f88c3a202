"""Whether a changed program computes what the unchanged one does: the unchanged one's own trials,
and what rounding alone does to it, are what it is judged by."""

from collections.abc import Callable, Sequence
from statistics import median

from msgspec.structs import replace

from ridgeline.equality.trials.parity import compare
from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.bench import Bench
from ridgeline.optimization.candidates import Candidate, alters, asked, precision
from ridgeline.optimization.measure import FEWEST_STEPS, Measure, timed
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import SearchCode
from ridgeline.records.parity import MEANS, Parity
from ridgeline.records.trial import Asked, Draws, Trial

REPEATS = 3
ULP = 2.0**-23
_JITTERS = {"tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""How far a type rounds: what that alone does to the program is tried, too."""
MOST_WATCHED = 8
LEFT = (
    "; or does it go on from what a run before it has written? Then look for RIDGELINE_TRIAL in its"
    " environment"
)
FAR_APART = 0.05
"""First losses of a program that begins as it did before do not lie."""
SHARE = 0.25
"""Of the time, for the program as it is: where it starts slowly, a repeat less is run."""


class Judge:
    def __init__(self, bench: Bench, measure: Measure, say: Callable[[str], None]) -> None:
        self._bench = bench
        self._measure = measure
        self._say = say
        self.baseline: list[Trial] = []
        self._owed: list[float] = []
        """How far parameters are still to be moved, once a change that rounds is to be judged."""
        self._redrawn = Redrawn(bench, say)
        self._seen: Callable[[Outcome], None] = lambda found: None

    def learn(
        self, possible: Sequence[Candidate], exact: bool, seen: Callable[[Outcome], None]
    ) -> Reason | None:
        """Run the baseline; return why there is nothing to compare with, or None.

        `possible` are the fixes that may be tried: the coarsest precision among them says how far
        the perturbed runs have to be perturbed.
        """
        self._seen = seen
        coarse = None if exact else _JITTERS.get(precision(one.fix for one in possible))
        moved = [ULP, *([coarse] if coarse else [])]
        began = self._bench.left_s()
        failure = self._learn_one(0.0)
        later = [*moved, *([0.0] * (REPEATS - 1))]
        best = sorted(possible, key=lambda one: one.promise)[-1:]
        if self._short(began, len(moved)) and _exact(best):
            later, self._owed = [0.0], [] if exact else moved
        for number, jitter in enumerate(later, 1):
            left = self._bench.left_s()
            spent = began - left
            if failure is not None or left <= 0:
                break  # no change will be tried: more of it would tell nothing
            if number > 2 and spent * (number + 1) / number > SHARE * began:
                break  # two of it as it is would be better, but the changes need the time
            failure = self._learn_one(jitter)
        return failure

    def _short(self, began: float, more: int) -> bool:
        """Of time: then what the most promising change does not need waits for one that does."""
        spent = began - self._bench.left_s()
        return spent * (1 + more) > SHARE * began

    def owed_s(self, fixes: Sequence[Candidate]) -> float:
        """What judging these will take besides their own trials."""
        return 0.0 if _exact(fixes) else len(self._owed) * self._bench.cost_s(())

    def _catch_up(self, fixes: Sequence[Candidate]) -> None:
        while self._owed and not _exact(fixes) and self._bench.left_s() > 0:
            self._learn_one(self._owed.pop(0))

    def _learn_one(self, jitter: float) -> Reason | None:
        self._say("baseline, perturbed by one rounding unit" if jitter else "baseline")
        found = self._bench.trial((), jitter=jitter)
        if found.cut:
            code = SearchCode.OUT_OF_TIME if self.baseline else SearchCode.NO_BASELINE_TIME
            return because(code)
        if found.trial is None:
            run = len(self.baseline) + 1
            return because(SearchCode.BASELINE_RUN_FAILED, cause=found.failure, run=run)
        if not timed(found.trial):
            return because(
                SearchCode.BASELINE_TOO_SHORT, ended=found.trial.ended,
                needed_steps=MOST_WATCHED + 1 + FEWEST_STEPS,
            )  # fmt: skip
        if self._measure.of(found.trial) is None:
            return because(SearchCode.NO_MEASURE, measure=self._measure.name)
        self.baseline.append(found.trial)
        if not jitter:
            self._seen(found)
        return None

    def varies(self) -> str:
        """A sentence where the program as it is computes other numbers each time it is run."""
        first = [trial.watched[0] for trial in self.baseline if trial.watched]
        data = {step.batch_sum for step in first}
        plain = [trial.watched[0] for trial in self.baseline if trial.watched and not trial.jitter]
        losses = [step.loss for step in plain if step.loss is not None]
        if len(data) > 1:
            what = "other data"
        elif losses and max(losses) - min(losses) > FAR_APART * abs(max(losses, key=abs)):
            what = "another first loss"
        else:
            return ""
        return f"the program as it is has {what} each time it is run: seed it{LEFT}"

    @property
    def peak_bytes(self) -> int:
        return round(median(trial.peak_bytes for trial in self.baseline)) if self.baseline else 0

    def parity(self, trials: Trial | Sequence[Trial], fixes: Sequence[Candidate]) -> Parity:
        of = [one.fix for one in fixes]
        return compare(self.baseline, trials, alters(of), precision(of))

    def missing(self, trial: Trial, tried: Sequence[Candidate]) -> Reason | None:
        """Return why one of the fixes was not applied; None if all were."""
        applied = {one.fix for one in trial.applied}
        for one in tried:
            if one.fix.id not in applied:
                told = [n.why for n in trial.not_applied if n.fix == one.fix.id]
                if told:
                    return because(SearchCode.NOT_APPLIED, detail=told[0])
                return because(SearchCode.NOTHING_TO_CHANGE)
        return None

    def compared(self, trial: Trial, fixes: Sequence[Candidate]) -> Parity:
        """Of a first trial, whose dropout may have dropped others."""
        self._catch_up(fixes)
        found = self.parity(trial, fixes)
        draws = any(one.draws and _trains(one) for one in self.baseline)
        if found.equality in FINE or not draws or _exact(fixes):
            return found
        return self._redrawn.compared(self.baseline, trial, fixes, found)


def _trains(trial: Trial) -> bool:
    return any(step.backwards for step in trial.watched)


def _exact(fixes: Sequence[Candidate]) -> bool:
    return all(one.fix.alters == "nothing" for one in fixes)


FINE = ("equal", "weak")
OTHERS = "dropout drops others under it"
UNASKED = "it could not be compared without dropout in the time that was left"
WITHOUT = "compared without dropout, which drops others under it"


class Redrawn:
    def __init__(self, bench: Bench, say: Callable[[str], None]) -> None:
        self._bench = bench
        self._say = say
        self._undropped: list[Trial] = []
        """The unchanged program without dropout."""
        self._useless = False
        """To compare without dropout: it could not be run so, or there is none."""
        self._known: list[tuple[tuple[Asked, ...], Parity]] = []
        """Of what was put on: it is asked again where the whole is confirmed."""

    def compared(
        self,
        baseline: Sequence[Trial],
        trial: Trial,
        fixes: Sequence[Candidate],
        differs: Parity,
    ) -> Parity:
        """`differs`: what comparing the trial as it is has said, and what stays where dropout does
        not explain it. What it cannot explain (other data, skipped steps, losses that do not fall)
        is asked of that trial, too."""
        loosely = _compared(baseline, trial, fixes, OTHERS)
        if not _fine(loosely) or not trial.draws:
            return differs
        strictly = self._known_of(asked(fixes)) or self._strictly(baseline, fixes)
        if strictly is None:
            return differs if self._useless else replace(differs, why=f"{differs.why}; {UNASKED}")
        self._known.append((asked(fixes), strictly))
        if not _fine(strictly):
            return strictly
        means = [check for check in loosely.checks if check.what == MEANS]
        return replace(strictly, checks=(*strictly.checks, *means))

    def _known_of(self, on: Sequence[Asked]) -> Parity | None:
        """Of these, or of more that were equal with them: one of those was left out since."""
        every = ((of, found) for of, found in self._known if all(one in of for one in on))
        return next((found for of, found in every if len(of) == len(on) or _fine(found)), None)

    def _strictly(self, baseline: Sequence[Trial], fixes: Sequence[Candidate]) -> Parity | None:
        """None: it cannot be asked, or there was no time."""
        rounding = [one.fix for one in fixes if one.fix.alters != "nothing"]
        compiled = any(fix.slot == "compile" for fix in rounding)
        alone = all(fix.slot == "compile" for fix in rounding)
        found: Parity | None = None
        if compiled and (alone or baseline[0].device == "cpu") and self._time_for(fixes, 0):
            found = self._drawn("eager", baseline, fixes)
        if found is not None and _fine(found):
            return found
        if self._useless or not self._without_dropout(baseline, fixes):
            return found
        without = self._drawn("none", self._undropped, fixes)
        return replace(without, why=f"{without.why}; {WITHOUT}") if without is not None else found

    def _drawn(
        self, draws: Draws, baseline: Sequence[Trial], fixes: Sequence[Candidate]
    ) -> Parity | None:
        found = self._bench.trial(asked(fixes), draws=draws).trial
        return _compared(baseline, found, fixes) if found is not None else None

    def _without_dropout(self, baseline: Sequence[Trial], fixes: Sequence[Candidate]) -> bool:
        """The unchanged program, once as it is and moved as far as the baseline was."""
        wanted = list(dict.fromkeys(one.jitter for one in baseline))
        missing = [jitter for jitter in wanted if jitter not in self._jitters()]
        if not self._time_for(fixes, len(missing)):
            return False
        for jitter in missing:
            self._say("the program as it is, without dropout")
            found = self._bench.trial((), jitter=jitter, draws="none")
            if found.trial is None or found.trial.undropped == 0:
                self._useless = not found.cut
                return False
            self._undropped.append(found.trial)
        return True

    def _jitters(self) -> set[float]:
        return {trial.jitter for trial in self._undropped}

    def _time_for(self, fixes: Sequence[Candidate], plain: int) -> bool:
        takes = self._bench.cost_s(asked(fixes)) + plain * self._bench.cost_s(())
        return takes < self._bench.left_s() - self._bench.held_s


def _fine(parity: Parity) -> bool:
    return parity.equality in FINE


def _compared(
    baseline: Sequence[Trial], trial: Trial, fixes: Sequence[Candidate], redrawn: str = ""
) -> Parity:
    of = [one.fix for one in fixes]
    return compare(baseline, trial, alters(of), precision(of), redrawn)
