from collections.abc import Iterator
from typing import Any

import torch

from ridgeline.harness.trials.timed_steps import MIN_ENERGY_NS, READ_EVERY_NS, EnergyMeter

SECOND = 1_000_000_000


def counter(*values: float | None) -> Any:
    given: Iterator[float | None] = iter(values)
    return lambda: next(given)


def test_energy_is_that_of_an_average_step_between_the_two_readings() -> None:
    meter = EnergyMeter(torch, counter(100.0, 160.0))
    meter.begin(9, 0)
    meter.ended(10, False, READ_EVERY_NS - 1)  # not read: the next reading is the last one's
    meter.ended(39, True, SECOND)
    assert meter.joules == 60.0 / 30


def test_a_program_that_ends_early_is_known_up_to_the_last_reading() -> None:
    meter = EnergyMeter(torch, counter(0.0, 5.0))
    meter.begin(9, 0)
    meter.ended(14, False, READ_EVERY_NS)
    assert meter.joules == 1.0


def test_a_step_that_compiles_begins_it_again() -> None:
    meter = EnergyMeter(torch, counter(0.0, 900.0, 910.0))
    meter.begin(9, 0)
    meter.begin(12, SECOND)
    meter.ended(22, True, 2 * SECOND)
    assert meter.joules == 1.0


def test_a_machine_that_does_not_tell_gives_nothing() -> None:
    meter = EnergyMeter(torch, counter(None))
    meter.begin(9, 0)
    meter.ended(39, True, SECOND)
    assert meter.joules is None
    assert EnergyMeter(torch, counter()).joules is None


def test_too_short_a_time_for_the_counter_gives_nothing() -> None:
    meter = EnergyMeter(torch, counter(0.0, 1.0))
    meter.begin(9, 0)
    meter.ended(39, True, MIN_ENERGY_NS["cpu"] - 1)
    assert meter.joules is None
