"""Sets of fixes that fail in a race: which fix is held to be why."""

from collections.abc import Mapping, Sequence
from typing import cast

from ridgeline.fixes.fix import find_fix
from ridgeline.optimization.candidates import Candidate
from ridgeline.optimization.race import Heat, Race, SetKey, Standing
from ridgeline.optimization.race_search import RaceSearch
from ridgeline.optimization.rungs import key
from ridgeline.records.facts import Ratio, because
from ridgeline.records.trial import Applied, Asked, TrialFailure

FAILURE = because(TrialFailure.RAISED, error="RuntimeError: not together")
ONE_AND_A_HALF = Ratio(value=1.5, ci_low=1.4, ci_high=1.6, pairs=8)
NO_GAIN = Ratio(value=1.0, ci_low=0.99, ci_high=1.01, pairs=8)


class FakeRace:
    """A race in which some fixes are faster, and some fail together."""

    def __init__(
        self, faster: set[str], failing: Sequence[set[str]],
        undecided: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """`undecided` are fixes that no heat decides, with their ratios."""
        self._undecided = undecided or {}
        self._faster = faster
        self._failing = failing
        self.sets: list[frozenset[str]] = []
        self.measured: set[SetKey] = set()

    def heat(
        self, base: tuple[Asked, ...], sets: Sequence[tuple[Asked, ...]], limit_s: float
    ) -> Heat:
        assert all(fixes != base for fixes in sets)
        others = tuple(self._standing(base, fixes) for fixes in sets)
        return Heat(Standing(fixes=base), others, NO_GAIN, 4)

    def _standing(self, base: tuple[Asked, ...], fixes: tuple[Asked, ...]) -> Standing:
        names = {one.fix for one in fixes}
        self.sets.append(frozenset(names))
        applied = tuple(Applied(fix=name, targets=()) for name in names)
        if any(failing <= names for failing in self._failing):
            return Standing(fixes=fixes, applied=applied, verdict="INVALID", failure=FAILURE)
        if names <= self._undecided.keys():
            value = max(self._undecided[name] for name in names)
            ratio = Ratio(value=value, ci_low=0.1, ci_high=30.0, pairs=2)
            return Standing(fixes=fixes, applied=applied, ratio=ratio)
        if self._faster & (names - {one.fix for one in base}):
            return Standing(fixes=fixes, applied=applied, verdict="FASTER", ratio=ONE_AND_A_HALF)
        return Standing(fixes=fixes, applied=applied, verdict="SAME", ratio=NO_GAIN)


def searched(race: FakeRace, names: Sequence[str]) -> RaceSearch:
    candidates = [Candidate(fix=find_fix(name).fix) for name in names]
    search = RaceSearch(
        cast(Race, race), lambda kept, standing: candidates,
        left_s=lambda: 100.0, passed_s=lambda: 0.0, compile_s=lambda one: 10.0,
        doing=lambda title: None,
    )  # fmt: skip
    search.run()
    return search


def test_a_compiler_that_fails_beside_the_usual_fixes_is_raced_alone() -> None:
    race = FakeRace({"compile"}, [{"compile", "fused-optimizer"}])
    search = searched(race, ["tf32", "fused-optimizer", "compile"])
    assert frozenset({"tf32", "fused-optimizer", "compile"}) in race.sets
    assert [one.fix.id for one in search.kept] == ["compile"]


def test_a_compiler_that_fails_alone_too_is_why() -> None:
    race = FakeRace(set(), [{"compile"}])
    search = searched(race, ["tf32", "fused-optimizer", "compile"])
    compiler = Candidate(fix=find_fix("compile").fix)
    assert search.kept == ()
    assert search.raced[key(compiler)].standing.failure == FAILURE
    assert search.raced[key(compiler)].beside == ()
    assert race.sets.count(frozenset({"compile"})) == 1


def test_where_nothing_wins_no_empty_set_is_raced() -> None:
    race = FakeRace(set(), [{"tf32", "fused-optimizer"}])
    assert searched(race, ["tf32", "fused-optimizer"]).kept == ()
    assert frozenset() not in race.sets


def test_where_a_race_decides_nothing_its_most_promising_fix_is_left_to_the_proof() -> None:
    race = FakeRace(set(), [], undecided={"tf32": 1.3, "threads": 2.5, "channels-last": 1.0})
    search = searched(race, ["tf32", "threads", "channels-last"])
    assert [one.fix.id for one in search.kept] == ["threads"]
    assert search.ratio is not None
    assert search.ratio.value == 2.5


def test_a_fix_that_promises_nothing_is_not_left_to_the_proof() -> None:
    race = FakeRace(set(), [], undecided={"tf32": 1.05, "threads": 0.9})
    assert searched(race, ["tf32", "threads"]).kept == ()


def test_a_fix_that_was_faster_goes_before_one_that_is_undecided() -> None:
    race = FakeRace({"tf32"}, [], undecided={"threads": 9.0})
    assert [one.fix.id for one in searched(race, ["tf32", "threads"]).kept] == ["tf32"]
