"""The best of several blocks, on a clock that is made up."""

import pytest

from ridgeline.machine.microbenchmarks import Call, best_seconds


class FakeDevice:
    """Runs calls in no time and says they took `seconds` each, one figure a block."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = list(seconds)
        self.now = 0.0
        self.repeats: list[int] = []

    def timer(self, call: Call, repeats: int) -> float:
        self.repeats.append(repeats)
        each = self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        self.now += each * repeats
        return each * repeats

    def clock(self) -> float:
        return self.now


def _best(device: FakeDevice, budget_s: float, blocks: int = 3) -> float:
    return best_seconds(
        lambda: None,
        device.timer,
        budget_s=budget_s,
        blocks=blocks,
        block_s=0.05,
        clock=device.clock,
    )


def test_the_best_block_counts_and_not_the_warm_up() -> None:
    # first call, estimate, warm-up block, then three that count
    device = FakeDevice(9.0, 0.001, 0.0001, 0.004, 0.002, 0.003)
    assert _best(device, budget_s=100) == pytest.approx(0.002)


def test_blocks_are_as_long_as_the_clock_needs() -> None:
    device = FakeDevice(0.001)
    _best(device, budget_s=100)
    assert device.repeats == [1, 1, 50, 50, 50, 50]


def test_a_call_longer_than_a_block_runs_once_a_block() -> None:
    device = FakeDevice(0.2)
    _best(device, budget_s=100, blocks=2)
    assert device.repeats == [1, 1, 1, 1]


def test_a_rest_comes_before_each_block_and_costs_budget() -> None:
    device, rests = FakeDevice(0.001), []

    def sleep(seconds: float) -> None:
        rests.append(seconds)
        device.now += seconds

    best_seconds(
        lambda: None,
        device.timer,
        budget_s=0.7,
        blocks=5,
        block_s=0.02,
        rest_s=0.2,
        clock=device.clock,
        sleep=sleep,
    )
    assert rests == [0.2, 0.2, 0.2]
    assert device.repeats[3:] == [5, 20, 5, 20, 5, 20]


def test_a_spent_budget_still_gives_one_figure() -> None:
    device = FakeDevice(0.2)
    assert _best(device, budget_s=0.0) == pytest.approx(0.2)
    assert device.repeats == [1, 1]
