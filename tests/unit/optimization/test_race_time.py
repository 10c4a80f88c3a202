"""How a race uses its time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from ridgeline.fixes.fix import find_fix
from ridgeline.optimization.candidates import Candidate
from ridgeline.optimization.race import Heat, Race, SetKey, Standing
from ridgeline.optimization.race_search import RaceOutcome, Racing, run_race
from ridgeline.records.facts import Ratio
from ridgeline.records.trial import Applied, Asked

FASTER = Ratio(value=1.5, ci_low=1.4, ci_high=1.6, pairs=8)


class FakeRace:
    """A race in which every set is faster."""

    compiled: Path | None = None
    compile_s = 0.0
    starts = 1
    start_s = 1.0
    stopped = None

    def __init__(self, slowdown: float, step_s: float) -> None:
        self.slowdown, self.step_s = slowdown, step_s
        self.measured: set[SetKey] = set()
        self.heats: list[list[frozenset[str]]] = []

    def heat(
        self, base: tuple[Asked, ...], sets: Sequence[tuple[Asked, ...]], limit_s: float
    ) -> Heat:
        self.heats.append([frozenset(one.fix for one in fixes) for fixes in sets])
        others = tuple(self._standing(fixes) for fixes in sets)
        return Heat(Standing(fixes=base), others, None, 4)

    def _standing(self, fixes: tuple[Asked, ...]) -> Standing:
        applied = tuple(Applied(fix=one.fix, targets=()) for one in fixes)
        return Standing(fixes=fixes, applied=applied, verdict="FASTER", ratio=FASTER)

    def close(self) -> None: ...


def raced(
    names: Sequence[str], left_s: Callable[[], float] = lambda: 300.0, *, slowdown: float = 1.0,
    step_s: float = 0.01,
) -> tuple[FakeRace, RaceOutcome]:  # fmt: skip
    race = FakeRace(slowdown, step_s)
    racing = Racing(lambda left: cast(Race, race), lambda *given: None, trial_steps=50)
    every = [Candidate(fix=find_fix(name).fix) for name in names]
    outcome, _ = run_race(
        racing, lambda kept, standing: every, left_s=left_s, budget_s=300.0,
        doing=lambda title: None,
    )  # fmt: skip
    return race, outcome


def test_a_compiler_is_raced_if_there_is_time_for_it() -> None:
    race, _ = raced(["fused-optimizer", "compile"])
    assert any("compile" in fixes for heat in race.heats for fixes in heat)


def test_no_compiler_is_raced_where_a_busy_machine_leaves_no_time_to_compile() -> None:
    race, outcome = raced(["fused-optimizer", "compile"], slowdown=6.0)
    assert not any("compile" in fixes for heat in race.heats for fixes in heat)
    assert [one.fix.id for one in outcome.kept] == ["fused-optimizer"]


def test_the_race_is_shorter_where_the_steps_of_the_proof_take_long() -> None:
    for step_s, compiled in ((0.01, True), (0.8, False)):
        race, outcome = raced(["fused-optimizer", "compile"], lambda: 230.0, step_s=step_s)
        assert any("compile" in fixes for heat in race.heats for fixes in heat) == compiled
        assert "fused-optimizer" in {one.fix.id for one in outcome.kept}


def test_the_course_tells_when_the_kept_set_became_faster() -> None:
    left = iter(range(300, 0, -1))
    _, outcome = raced(["fused-optimizer", "compile"], lambda: float(next(left)))
    moments = outcome.course
    assert [one.at_s for one in moments] == sorted(one.at_s for one in moments)
    assert moments[0].at_s > 0
    assert moments[-1].best == max(one.best for one in moments) > 1
