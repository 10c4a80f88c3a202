"""Races that do not reach their end: which set of fixes is given up, and what is known then."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from ridgeline.fixes.fix import find_fix
from ridgeline.optimization import race as race_module
from ridgeline.optimization.agenda import SearchSettings
from ridgeline.optimization.candidates import Candidate
from ridgeline.optimization.ladder import Ladder
from ridgeline.optimization.race import CannotRace, Heat, Race, set_key
from ridgeline.optimization.race_search import RaceBudget, Racing
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Optimized, SearchCode
from ridgeline.records.race import RaceBlock, RaceMember, RaceMessage, RaceRequest
from ridgeline.records.trial import Applied, Asked, TrialFailure
from tests.unit.optimization.fake_bench import FakeBench

WARM_UP_STEPS = 4
STEP_NS = 10_000_000
EXITED = because(TrialFailure.EXITED, exit_code=7, last_line="")
KILLED = because(TrialFailure.KILLED, signal="SIGSEGV")
FUSED = (Asked(fix="fused-optimizer"),)
TF32 = (Asked(fix="tf32"),)
THREADS = (Asked(fix="threads", options={"threads": "1"}),)


class Ended(Exception):
    """The scripted program ends."""


class Clock:
    """The time as a race sees it. It goes on while the race waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class ScriptedProgram:
    """A program that takes noisy steps of 10 ms, or of 5 ms with a fused update. It ends as it is
    told."""

    compiled = Path("compiled")

    def __init__(
        self, *, own_end: int | None = None, deadly: Sequence[tuple[Asked, ...]] = (),
        interrupted_after: int | None = None, faulty_after: int | None = None,
        hanging: Sequence[tuple[Asked, ...]] = (), clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """It ends by itself with an exit code at the step `own_end`, and by a signal at the first
        step under one of the sets `deadly`. After so many rounds, who waits for it is interrupted,
        or our own code in it fails. It takes no further step under one of the sets `hanging`."""
        self._own_end = own_end
        self._deadly = {set_key(fixes) for fixes in deadly}
        self._hanging = {set_key(fixes) for fixes in hanging}
        self._clock = clock
        self._interrupted_after = interrupted_after
        self._faulty_after = faulty_after
        self._rounds = 0
        self._request: RaceRequest | None = None
        self._failure: Reason | None = None
        self._known: set[bytes] = set()
        self._noise = random.Random(0)
        self._steps = 0
        self._asked = 0
        self.is_running = True

    def ask(self, request: RaceRequest) -> int:
        self._asked += 1
        self._request = replace(request, number=self._asked)
        return self._asked

    def failure(self) -> Reason | None:
        return self._failure

    def end(self, patience_s: float = 2.0) -> None:
        self.is_running = False

    def messages(self, deadline_s: float) -> Iterator[RaceMessage | None]:
        try:
            if self._request is None:
                self._step(WARM_UP_STEPS)
                yield RaceMessage(ready=True, step_ns=STEP_NS)
            else:
                yield from self._measured(self._request)
        except Ended:
            self.is_running = False

    def _measured(self, request: RaceRequest) -> Iterator[RaceMessage | None]:
        for number, fixes in enumerate(request.sets):
            if set_key(fixes) not in self._known:
                self._known.add(set_key(fixes))
                yield from self._under(request, number, request.set_up_steps)
            applied = tuple(Applied(fix=one.fix, targets=()) for one in fixes)
            yield RaceMessage(member=RaceMember(request=1, member=number, applied=applied))
        for number in range(request.rounds):
            if self._rounds == self._interrupted_after:
                raise KeyboardInterrupt
            if self._rounds == self._faulty_after:
                yield RaceMessage(fault="KeyError: 0")
            self._rounds += 1
            blocks = []
            for member, fixes in enumerate(request.sets):
                yield from self._under(request, member, request.skipped_steps + request.block_steps)
                is_fused = any(one.fix == "fused-optimizer" for one in fixes)
                step_ns = STEP_NS // 2 if is_fused else STEP_NS
                blocks.append(
                    RaceBlock(
                        request=request.number, member=member, round=number,
                        steps=request.block_steps,
                        wall_ns=round(request.block_steps * step_ns * self._noise.gauss(1, 0.1)),
                    )
                )  # fmt: skip
            for block in blocks:
                yield RaceMessage(block=block)
        yield RaceMessage(measured=request.number)

    def _under(self, request: RaceRequest, member: int, steps: int) -> Iterator[RaceMessage | None]:
        began = RaceMember(request=request.number, member=member, began=True, steps=self._steps)
        yield RaceMessage(member=began)
        if set_key(request.sets[member]) in self._deadly:
            self._step(1)
            self._failure = KILLED
            raise Ended
        while self._clock is not None and set_key(request.sets[member]) in self._hanging:
            self._clock.now_s += 1
            yield None
        self._step(steps)

    def _step(self, steps: int) -> None:
        self._steps += steps
        if self._own_end is not None and self._steps >= self._own_end:
            self._failure = EXITED
            raise Ended


def raced(
    race: Race, sets: Sequence[tuple[Asked, ...]] = (FUSED, TF32, THREADS)
) -> tuple[Heat, dict[str, Reason | None]]:
    heat = race.heat((), sets, 10.0)
    return heat, {one.fixes[0].fix: one.failure for one in heat.others}


def test_a_set_under_which_the_process_dies_at_once_is_given_up() -> None:
    race = Race(lambda: ScriptedProgram(deadly=[TF32]), lambda: 60.0)
    heat, failures = raced(race)
    assert failures == {"fused-optimizer": None, "tf32": KILLED, "threads": None}
    assert heat.others[0].verdict == "FASTER"
    assert race.starts == 2


def test_two_deadly_sets_are_both_given_up() -> None:
    race = Race(lambda: ScriptedProgram(deadly=[TF32, THREADS]), lambda: 60.0)
    _, failures = raced(race)
    assert failures == {"fused-optimizer": None, "tf32": KILLED, "threads": KILLED}


def test_a_set_with_a_deadly_fix_is_not_put_on() -> None:
    race = Race(lambda: ScriptedProgram(deadly=[TF32, (*TF32, *FUSED)]), lambda: 60.0)
    heat = race.heat((), [TF32, (*TF32, *FUSED), FUSED], 10.0)
    failures = [one.failure for one in heat.others]
    assert failures == [KILLED, because(SearchCode.RACE_FAILS_ALIKE, cause=KILLED), None]
    assert race.starts == 2


def test_other_options_of_a_fix_that_hangs_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(race_module, "time", clock)
    two, four = (
        (Asked(fix="loader-workers", options={"workers": number}),) for number in ("2", "4")
    )
    race = Race(lambda: ScriptedProgram(hanging=[two, four], clock=clock), lambda: 600.0)
    heat = race.heat((), [two, four, FUSED], 100.0)
    hung, alike, faster = (one.failure for one in heat.others)
    assert hung is not None
    assert hung.code == TrialFailure.TIMED_OUT
    assert alike == because(SearchCode.RACE_FAILS_ALIKE, cause=hung)
    assert faster is None
    assert race.starts == 2


@pytest.mark.parametrize(("whole_s", "longest_s"), [(6.0, 7.0), (60.0, 11.0)])
def test_a_race_waits_for_a_round_no_longer_than_the_whole_call_has_time(
    monkeypatch: pytest.MonkeyPatch, whole_s: float, longest_s: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(race_module, "time", clock)
    race = Race(
        lambda: ScriptedProgram(hanging=[FUSED], clock=clock),
        lambda: 5.0 - clock.now_s, lambda: whole_s - clock.now_s,
    )  # fmt: skip
    race.heat((), [FUSED], 5.0)
    assert longest_s - 2 <= clock.now_s <= longest_s + 1


@pytest.mark.parametrize("own_end", [100, 101, 103, 150])
def test_no_set_is_given_up_where_the_program_ends_with_an_error_of_its_own(own_end: int) -> None:
    race = Race(lambda: ScriptedProgram(own_end=own_end), lambda: 60.0)
    heat, failures = raced(race)
    assert set(failures.values()) == {None}
    assert heat.others[0].verdict == "FASTER"


def test_a_deadly_set_of_a_program_with_an_error_of_its_own_is_given_up() -> None:
    race = Race(lambda: ScriptedProgram(own_end=100, deadly=[TF32]), lambda: 60.0)
    _, failures = raced(race)
    assert failures == {"fused-optimizer": None, "tf32": KILLED, "threads": None}


def test_what_was_measured_before_an_interrupt_is_kept_and_the_next_heat_raises_it() -> None:
    race = Race(lambda: ScriptedProgram(interrupted_after=3), lambda: 60.0)
    heat, _ = raced(race)
    assert heat.others[0].ratio is not None
    assert heat.others[0].ratio.value == pytest.approx(2, rel=0.2)
    with pytest.raises(KeyboardInterrupt):
        race.heat((), [THREADS], 10.0)


def test_an_interrupt_before_anything_was_measured_is_raised_at_once() -> None:
    race = Race(lambda: ScriptedProgram(interrupted_after=0), lambda: 60.0)
    with pytest.raises(KeyboardInterrupt):
        raced(race)


def test_a_baseline_that_dies_at_once_cannot_be_raced() -> None:
    race = Race(lambda: ScriptedProgram(deadly=[()]), lambda: 60.0)
    with pytest.raises(CannotRace) as caught:
        raced(race)
    assert caught.value.reason == KILLED


def searched(program: ScriptedProgram) -> Optimized:
    """Return what a search finds whose race runs this program. A fused update is twice as fast."""
    bench = FakeBench(lambda names: 2.0 if "fused-optimizer" in names else 1.0)
    racing = Racing(lambda left_s: Race(lambda: program, lambda: 60.0), lambda *of: None)
    candidates = [
        Candidate(fix=find_fix("fused-optimizer").fix, options={"kind": "AdamW"}),
        Candidate(fix=find_fix("threads").fix, options={"threads": "1"}),
    ]
    ask = lambda kept, standing=None: candidates  # noqa: E731
    return Ladder(bench, ask, SearchSettings(), race=racing).climb("train.py")


def test_an_interrupted_race_reports_what_it_has_measured() -> None:
    found = searched(ScriptedProgram(interrupted_after=12))
    assert found.interrupted
    assert found.race is not None
    assert found.race.fixes == ("fused-optimizer",)
    assert found.race.ratio is not None
    assert found.race.measured == 3
    rungs = {rung.fix: rung for rung in found.rungs}
    assert rungs["fused-optimizer"].status == "not tried"
    assert rungs["fused-optimizer"].options == {"kind": "AdamW"}
    assert found.total is None


def test_what_a_race_has_kept_before_it_failed_is_proven() -> None:
    found = searched(ScriptedProgram(faulty_after=12))
    assert found.race is not None
    assert found.race.reason == because(SearchCode.RACE_FAULT, error="KeyError: 0")
    assert found.race.fixes == ("fused-optimizer",)
    assert found.total is not None
    assert found.total.fixes == ("fused-optimizer",)


@pytest.mark.parametrize(
    ("budget_s", "start_s"), [(300, 3), (60, 3), (60, 8), (30, 8), (20, 8), (1000, 60)]
)
def test_a_race_gets_time_and_leaves_time_for_the_proof(budget_s: float, start_s: float) -> None:
    spent_s = 0.0
    budget = RaceBudget(lambda: budget_s - spent_s, budget_s)
    budget.start_s = lambda: start_s
    spent_s = start_s
    left_s = budget.left_s()
    assert left_s >= 0.3 * (budget_s - start_s)
    assert left_s <= 0.5 * budget_s
    assert 0.7 * left_s <= budget.searching_s() < left_s
    spent_s += left_s
    assert budget.left_s() == pytest.approx(0)


def test_a_race_is_shorter_where_a_proof_fits_in_only_then() -> None:
    spent_s = 10.0
    budget = RaceBudget(lambda: 200 - spent_s, 200)
    budget.start_s = lambda: 15.0
    assert budget.left_s() == pytest.approx(200 - 10 - 7 * 15)
