"""How a race judges blocks of a machine that other programs use too. The noise is simulated."""

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from ridgeline.fixes.fix import find_fix
from ridgeline.optimization.candidates import Candidate, asked
from ridgeline.optimization.race import Heat, Race, Standing
from ridgeline.records.facts import Reason
from ridgeline.records.race import RaceBlock, RaceMember, RaceMessage, RaceRequest
from ridgeline.records.trial import Applied, Asked

FUSED = asked([Candidate(fix=find_fix("fused-optimizer").fix)])
WORKERS = asked([Candidate(fix=find_fix("loader-workers").fix, options={"workers": "2"})])
STEP_NS = 10e6

Step = Callable[[tuple[Asked, ...], random.Random], tuple[float, float, int]]
"""Returns the work of a step under a set of fixes, its wait for a processor, and the workers."""


class SimulatedProgram:
    """Answers requests at once, with blocks whose times are drawn."""

    compiled = Path("unused")
    is_running = True

    def __init__(self, step: Step, seed: int) -> None:
        self._step = step
        self._random = random.Random(seed)
        self._answers: list[RaceMessage] = [RaceMessage(ready=True, step_ns=round(STEP_NS))]
        self._asked = 0

    def ask(self, request: RaceRequest) -> int:
        self._asked += 1
        for member, fixes in enumerate(request.sets):
            applied = tuple(Applied(fix=one.fix, targets=()) for one in fixes)
            ready = RaceMember(request=self._asked, member=member, applied=applied)
            self._answers.append(RaceMessage(member=ready))
        for number in range(request.rounds):
            for member, fixes in enumerate(request.sets):
                work, queued, workers = self._step(fixes, self._random)
                block = RaceBlock(
                    request=self._asked, member=member, round=number, steps=1,
                    wall_ns=round(work + queued), queued_ns=round(queued), workers=workers,
                )  # fmt: skip
                self._answers.append(RaceMessage(block=block))
        self._answers.append(RaceMessage(measured=self._asked))
        return self._asked

    def messages(self, deadline_s: float) -> Iterator[RaceMessage | None]:
        answers, self._answers = self._answers, []
        yield from answers

    def failure(self) -> Reason | None:
        return None

    def end(self, patience_s: float = 2.0) -> None: ...


def raced(step: Step, candidate: tuple[Asked, ...], seed: int = 0) -> Standing:
    race = Race(lambda: SimulatedProgram(step, seed), lambda: 1000.0)
    heat: Heat = race.heat((), [candidate], 1000.0)
    return heat.others[0]


def drawn(sigma: float, noise: random.Random) -> float:
    return math.exp(noise.gauss(0, sigma))


def busy(ratio: float) -> Step:
    """A step of one process on a machine where it waits three times as long as it works."""

    def step(fixes: tuple[Asked, ...], noise: random.Random) -> tuple[float, float, int]:
        work = STEP_NS / (ratio if fixes else 1.0)
        return work * drawn(0.05, noise), 3 * work * drawn(0.6, noise), 0

    return step


def quiet(ratio: float) -> Step:
    def step(fixes: tuple[Asked, ...], noise: random.Random) -> tuple[float, float, int]:
        return STEP_NS / (ratio if fixes else 1.0) * drawn(0.03, noise), 0.0, 0

    return step


def test_a_small_gain_is_found_on_a_quiet_machine() -> None:
    found = [raced(quiet(1.10), FUSED, seed) for seed in range(20)]
    assert all(one.verdict == "FASTER" for one in found)


def test_a_gain_is_found_on_a_busy_machine_by_the_time_without_waits_for_a_processor() -> None:
    found = [raced(busy(1.15), FUSED, seed) for seed in range(20)]
    assert sum(one.verdict == "FASTER" for one in found) >= 19
    assert all(one.ratio is not None and 1.08 < one.ratio.value < 1.22 for one in found)


def test_equal_programs_are_not_called_faster_on_either_machine() -> None:
    for machine in (quiet, busy):
        found = [raced(machine(1.0), FUSED, seed) for seed in range(100)]
        assert sum(one.verdict == "FASTER" for one in found) <= 3


def test_a_set_that_is_slower_leaves_on_a_busy_machine() -> None:
    found = [raced(busy(0.8), FUSED, seed) for seed in range(20)]
    assert sum(one.verdict == "SLOWER" for one in found) >= 19


def test_a_set_that_won_has_an_interval_above_1() -> None:
    for seed in range(50):
        standing = raced(busy(1.05), FUSED, seed)
        if standing.verdict == "FASTER":
            assert standing.ratio is not None
            assert standing.ratio.ci_low > 1


def test_workers_gain_nothing_where_only_the_wait_for_a_processor_became_shorter() -> None:
    """Steps that have waited for workers get a busy processor sooner, for as long as a block."""

    def step(fixes: tuple[Asked, ...], noise: random.Random) -> tuple[float, float, int]:
        work = STEP_NS * drawn(0.05, noise)
        return work, (0.2 if fixes else 3.0) * work * drawn(0.3, noise), 2 if fixes else 0

    assert all(raced(step, WORKERS, seed).verdict != "FASTER" for seed in range(20))


def test_workers_that_crowd_the_processors_are_not_called_faster() -> None:
    """The steps wait for a processor because of the workers, which the steps' own work hides."""

    def step(fixes: tuple[Asked, ...], noise: random.Random) -> tuple[float, float, int]:
        work = STEP_NS * (0.7 if fixes else 1.0) * drawn(0.03, noise)
        return work, 0.5 * STEP_NS * drawn(0.1, noise) if fixes else 0.0, 2 if fixes else 0

    assert all(raced(step, WORKERS, seed).verdict == "SLOWER" for seed in range(20))


def test_what_gains_little_does_not_prolong_a_heat_in_which_another_gains_much() -> None:
    def step(fixes: tuple[Asked, ...], noise: random.Random) -> tuple[float, float, int]:
        ratio = 5.0 if fixes == WORKERS else 1.012 if fixes else 1.0
        return STEP_NS / ratio * drawn(0.03, noise), 0.0, 0

    race = Race(lambda: SimulatedProgram(step, 0), lambda: 1000.0)
    assert race.heat((), [FUSED], 1000.0).rounds > 20
    assert race.heat((), [FUSED, WORKERS], 1000.0).rounds < 10


def test_clocks_that_contradict_each_other_decide_nothing() -> None:
    def step(fixes: tuple[Asked, ...], noise: random.Random) -> tuple[float, float, int]:
        work = STEP_NS * (0.5 if fixes else 1.0) * drawn(0.03, noise)
        return work, STEP_NS * (2.0 if fixes else 1.0) * drawn(0.03, noise), 0

    assert raced(step, FUSED).verdict == "UNDECIDED"
