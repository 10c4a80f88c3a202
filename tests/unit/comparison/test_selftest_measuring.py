"""Windows taken on a simulated clock: how many, how long, and what Ctrl-C leaves."""

from collections.abc import Callable

import numpy as np
import pytest

from ridgeline.comparison.selftest import (
    EFFECTS,
    LONG_WINDOW_ROUNDS,
    SHORT_WINDOW_ROUNDS,
    Slowed,
    Taken,
    calibrate,
    judge_all,
    take,
    window_length,
)
from ridgeline.measure.clock import Reading
from ridgeline.measure.timing import Block

ARMS = 2 + len(EFFECTS)
MS = 1e6


class Machine:
    """Six variants on a clock of its own; every sample takes its variant's time."""

    def __init__(self, factors: tuple[float, ...] = (1.0,) * ARMS, stop_at: int | None = None):
        self.now = 0.0
        self.taken = 0
        self.order: list[int] = []
        self._factors = factors
        self._stop_at = stop_at
        self._noise = np.random.default_rng(0)

    def now_ns(self) -> int:
        return int(self.now)

    def shots(self) -> list[Callable[[], Block]]:
        return [self._shot(variant) for variant in range(len(self._factors))]

    def _shot(self, variant: int) -> Callable[[], Block]:
        def shot() -> Block:
            self.taken += 1
            if self.taken == self._stop_at:
                raise KeyboardInterrupt
            took = 10 * MS * self._factors[variant] * float(np.exp(self._noise.normal(0, 0.01)))
            self.now += took
            self.order.append(variant)
            return Block(Reading(total_ns=took, wall_ns=took, cpu_ns=took), 2)

        return shot


def _take(machine: Machine, limit_ms: float, length: int = 30, **changed: object) -> Taken:
    options = {"between": lambda: None, "say": lambda now: None} | changed
    return take(
        machine.shots(),
        length=length,
        limit_ns=limit_ms * MS,
        now_ns=machine.now_ns,
        seed=0,
        **options,  # type: ignore[arg-type]
    )


WINDOW_MS = 30 * (ARMS + 2) * 10


def test_windows_are_whole_and_end_within_the_limit() -> None:
    machine = Machine()
    taken = _take(machine, 3.5 * WINDOW_MS)
    assert [len(window) for window in taken.rounds] == [30, 30, 30]
    assert len(taken.sequences) == 3
    assert taken.stopped == "budget"
    assert machine.now <= 3.5 * WINDOW_MS * MS


def test_one_window_is_taken_however_little_time_there_is() -> None:
    assert len(_take(Machine(), 1.0).rounds) == 1


def test_after_the_rounds_the_baseline_runs_fully_and_then_the_identical_candidate() -> None:
    machine = Machine()
    taken = _take(machine, 1.0, length=5)
    assert machine.order[-10:] == [0] * 5 + [2] * 5
    assert len(taken.sequences[0].first) == len(taken.sequences[0].second) == 5


def test_ctrl_c_leaves_the_whole_windows() -> None:
    whole = 30 * (ARMS + 2)
    in_rounds, in_sequence = Machine(stop_at=2 * whole + 7), Machine(stop_at=3 * whole - 1)
    for machine in (in_rounds, in_sequence):
        taken = _take(machine, 1e6)
        assert (len(taken.rounds), len(taken.sequences)) == (2, 2)
        assert taken.stopped == "interrupted"


def test_ctrl_c_before_the_first_window_is_whole_stops_the_program() -> None:
    with pytest.raises(KeyboardInterrupt):
        _take(Machine(stop_at=40), 1e6)


def test_calibration_comes_after_whole_windows_only() -> None:
    machine = Machine()
    heard: list[int] = []
    _take(machine, 2.5 * WINDOW_MS, between=lambda: heard.append(machine.taken))
    assert heard == [30 * (ARMS + 2), 2 * 30 * (ARMS + 2)]


def test_long_windows_only_where_enough_of_them_fit() -> None:
    twenty = 20 * 60 * 8 * 10 * MS
    assert window_length(1.01 * twenty, 10 * MS, variants=6) == LONG_WINDOW_ROUNDS
    assert window_length(0.99 * twenty, 10 * MS, variants=6) == SHORT_WINDOW_ROUNDS


def _judged(machine: Machine) -> dict[float, set[tuple[str, str]]]:
    taken = _take(machine, 2.5 * WINDOW_MS)
    judged, discarded = judge_all(taken, True, 0, lambda now: None)
    assert discarded == 0
    assert len(judged) == len(EFFECTS) * len(taken.rounds)
    return {e: {(j.rounds, j.sequence) for j in judged if j.effect == e} for e in EFFECTS}


def test_each_candidate_is_judged_by_its_own_variant() -> None:
    found = _judged(Machine((1.0, 1.0, 1.0, 1.02, 1.05, 1.10)))
    assert {rounds for rounds, _ in found[0.0]} <= {"SAME", "UNDECIDED"}
    assert {rounds for rounds, _ in found[0.05] | found[0.1]} == {"SLOWER"}


def test_the_sequence_is_scaled_by_the_effect() -> None:
    found = _judged(Machine())  # no variant is really slower, and the rounds say so
    assert {sequence for _, sequence in found[0.1]} == {"SLOWER"}
    assert "SLOWER" not in {rounds for rounds, _ in found[0.1]}


def test_a_slowed_call_spends_its_share_of_what_a_call_takes() -> None:
    spent: list[object] = []
    slowed = Slowed(lambda: spent.append("call"), 0.05, spent.append)
    calibrate([slowed], 2 * MS)
    slowed()
    assert spent == ["call", pytest.approx(0.1 * MS)]
