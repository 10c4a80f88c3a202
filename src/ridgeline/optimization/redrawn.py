"""Under a change dropout may drop others: compiled code draws in its own way, another layout in
another order, another type or kernel on a GPU another mask. Nothing could be told from the numbers
then. Where they differ, the changed program has a trial of its own in which it draws as it did
before; where that is not enough, one in which nothing is dropped, against the unchanged program
without dropout."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ridgeline.equality.trials.parity import compare
from ridgeline.optimization.bench_protocol import Bench
from ridgeline.optimization.candidate import Candidate, alters, asked, precision
from ridgeline.records.parity import MEANS, Parity
from ridgeline.records.trial import Asked, Draws, Trial

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
        changes: Sequence[Candidate],
        differs: Parity,
    ) -> Parity:
        """`differs`: what comparing the trial as it is has said, and what stays where dropout does
        not explain it. What it cannot explain (other data, skipped steps, losses that do not fall)
        is asked of that trial, too."""
        loosely = _compared(baseline, trial, changes, OTHERS)
        if not _fine(loosely) or not trial.draws:
            return differs
        strictly = self._known_of(asked(changes)) or self._strictly(baseline, changes)
        if strictly is None:
            return differs if self._useless else replace(differs, why=f"{differs.why}; {UNASKED}")
        self._known.append((asked(changes), strictly))
        if not _fine(strictly):
            return strictly
        means = [check for check in loosely.checks if check.what == MEANS]
        return replace(strictly, checks=(*strictly.checks, *means))

    def _known_of(self, on: Sequence[Asked]) -> Parity | None:
        """Of these, or of more that were equal with them: one of those was left out since."""
        every = ((of, found) for of, found in self._known if all(one in of for one in on))
        return next((found for of, found in every if len(of) == len(on) or _fine(found)), None)

    def _strictly(self, baseline: Sequence[Trial], changes: Sequence[Candidate]) -> Parity | None:
        """None: it cannot be asked, or there was no time."""
        rounding = [one.change for one in changes if one.change.alters != "nothing"]
        compiled = any(change.slot == "compile" for change in rounding)
        alone = all(change.slot == "compile" for change in rounding)
        found: Parity | None = None
        if compiled and (alone or baseline[0].device == "cpu") and self._time_for(changes, 0):
            found = self._drawn("eager", baseline, changes)
        if found is not None and _fine(found):
            return found
        if self._useless or not self._without_dropout(baseline, changes):
            return found
        without = self._drawn("none", self._undropped, changes)
        return replace(without, why=f"{without.why}; {WITHOUT}") if without is not None else found

    def _drawn(
        self, draws: Draws, baseline: Sequence[Trial], changes: Sequence[Candidate]
    ) -> Parity | None:
        found = self._bench.trial(asked(changes), draws=draws).trial
        return _compared(baseline, found, changes) if found is not None else None

    def _without_dropout(self, baseline: Sequence[Trial], changes: Sequence[Candidate]) -> bool:
        """The unchanged program, once as it is and moved as far as the baseline was."""
        wanted = list(dict.fromkeys(one.jitter for one in baseline))
        missing = [jitter for jitter in wanted if jitter not in self._jitters()]
        if not self._time_for(changes, len(missing)):
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

    def _time_for(self, changes: Sequence[Candidate], plain: int) -> bool:
        takes = self._bench.cost_s(asked(changes)) + plain * self._bench.cost_s(())
        return takes < self._bench.left_s() - self._bench.held_s


def _fine(parity: Parity) -> bool:
    return parity.equality in FINE


def _compared(
    baseline: Sequence[Trial], trial: Trial, changes: Sequence[Candidate], redrawn: str = ""
) -> Parity:
    of = [one.change for one in changes]
    return compare(baseline, trial, alters(of), precision(of), redrawn)
