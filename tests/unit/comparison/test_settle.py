"""When enough is known: the plan of a comparison, and what it does with rounds."""

import numpy as np
import pytest

from ridgeline.comparison.contenders import Options
from ridgeline.comparison.preparation import Settling, events_agree, kept, settled
from ridgeline.measure.clock import Reading
from ridgeline.measure.timing import Block, Round
from ridgeline.statistics.simulation import simulated_crowd, simulated_rounds

from made_comparison import EVEN  # isort: skip


def block(ns: float, calls: int = 1, throttled: str = "", events: float = 1.0) -> Block:
    return Block(Reading(total_ns=ns * events, wall_ns=ns, cpu_ns=ns), calls, throttled)


def rounds(effect: float, count: int, sigma: float = 0.02, **changed: object) -> list[Round]:
    table = simulated_rounds(count, 3, effects=(1.0, 1.0, effect), sigma=sigma, seed=3)
    return [
        Round(tuple(block(1e6 * value) for value in samples), tuple(int(p) for p in positions), 0)
        for samples, positions in zip(table.samples, table.positions, strict=True)
    ]


def plan(**changed: object) -> Settling:
    values: dict[str, object] = {"round_ns": 1e8, "limit_ns": 10e9}
    return Settling(Options(), **{**values, **changed})  # type: ignore[arg-type]


def test_as_many_rounds_are_planned_as_the_time_allows() -> None:
    assert plan().max_rounds == 100
    assert plan(limit_ns=1e15).max_rounds == Options().max_rounds
    assert plan(limit_ns=1.0).max_rounds == 1


def test_sets_of_processes_share_the_rounds_and_are_looked_at_once() -> None:
    shared = plan(sets=3)
    assert shared.per_set * 3 == shared.max_rounds == 102
    assert shared.looks.rounds == (102,)


def test_a_clear_difference_is_decided_and_noise_is_not() -> None:
    settling = plan()
    assert settling.decided(rounds(1.3, 15, sigma=0.01))
    assert not settling.decided(rounds(1.0, 15, sigma=0.2))


def test_a_verdict_with_a_wide_interval_is_not_yet_settled() -> None:
    import msgspec

    wide = msgspec.structs.replace(EVEN, ratio=1.5, ci_low=1.1, ci_high=2.0)
    narrow = msgspec.structs.replace(EVEN, ratio=1.5, ci_low=1.45, ci_high=1.55)
    assert not settled("FASTER", wide, 0.02)
    assert settled("FASTER", narrow, 0.02)
    assert not settled("UNDECIDED", narrow, 0.02)


def test_throughput_is_time_an_item() -> None:
    settling = plan(items=(1.0, 1.0, 2.0))
    found = settling.analysis(rounds(1.0, 30))
    assert found.estimates[0].ratio == pytest.approx(2.0, rel=0.05)
    assert settling.per_call(rounds(1.0, 30)).shape == (30, 3)


def test_events_are_used_unless_they_missed_work() -> None:
    taken = [Round((block(1e6, 2, events=0.5),) * 3, (0, 1, 2), 0)]
    assert np.all(plan(by_events=True).per_call(taken) == 0.25e6)
    assert np.all(plan(by_events=False).per_call(taken) == 0.5e6)
    assert events_agree([1.0, 0.95])
    assert not events_agree([1.0, 0.3])


def test_throttled_rounds_are_left_out_and_counted_unless_they_are_most() -> None:
    cool = Round((block(1.0),) * 3, (0, 1, 2), 0)
    hot = Round((block(1.0), block(1.0, 1, "thermal throttling"), block(1.0)), (0, 1, 2), 0)
    left, discarded, cause = kept([cool, hot, cool])
    assert (len(left), discarded, cause) == (2, 1, "thermal throttling")
    left, discarded, words = kept([hot, hot, cool])
    assert (len(left), discarded) == (3, 0)
    assert "2 of 3 rounds" in words


def test_a_named_budget_is_kept_and_the_usual_one_gives_way_to_eight_rounds() -> None:
    assert Options(budget_s=5).limit_ns(5, 1e10) == 5e9
    assert Options().limit_ns(5, 1e10) >= 8e10
    assert Options().limit_ns(60, 1e6) == 60e9


def crowded(**told: object) -> list[Round]:
    """A gain of 1.5 × in blocks of four calls, on a machine of which others have nine tenths."""
    wall, processor = simulated_crowd(10, effects=(1, 1, 1 / 1.5), taken=0.9, seed=0)

    def reading(wall_ns: float, cpu_ns: float) -> Reading:
        given: dict[str, object] = {"thread_ns": cpu_ns, "sleeps": 0, **told}
        return Reading(total_ns=wall_ns, wall_ns=wall_ns, cpu_ns=cpu_ns, **given)  # type: ignore[arg-type]

    return [
        Round(
            tuple(Block(reading(4 * w, 4 * c), 4) for w, c in zip(walls, cpus, strict=True)),
            tuple(int(place) for place in places),
            0,
        )
        for walls, cpus, places in zip(wall.samples, processor.samples, wall.positions, strict=True)
    ]


def test_on_a_crowded_machine_processor_time_decides() -> None:
    found = plan().analysis(crowded(), "budget")
    assert (found.verdicts, found.decided_by) == (("FASTER",), ("processor_time",))
    assert found.processor_estimates[0].ratio == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize(
    "told",
    [
        {"thread_ns": None},  # a clock that does not read it
        {"sleeps": None},  # a system that does not count them
        {"sleeps": 2},  # it waits for something
        {"issue_ns": 1.0},  # a GPU
    ],
)
def test_processor_time_decides_nothing_where_it_may_mean_something_else(
    told: dict[str, object],
) -> None:
    found = plan().analysis(crowded(**told), "budget")
    assert (found.verdicts, found.decided_by) == (("UNDECIDED",), ("",))
