"""Which calls of a step count, by the walks of a backward and by the numbers of the batches."""

import pytest
import torch
from torch import Tensor, nn

from ridgeline.harness.capture import step_counts
from ridgeline.harness.capture.step_counts import NOTHING, Amount, BackwardReach, Calls


class Loop:
    """Steps that call one module twice, with two samples each."""

    def __init__(self) -> None:
        self.answered = BackwardReach(torch)
        self.model = nn.Linear(4, 4)
        self.walks = 0
        walk = self.answered._walk

        def counted(*given: object) -> list[bool]:
            self.walks += 1
            return walk(*given)  # type: ignore[arg-type]

        self.answered._walk = counted  # type: ignore[method-assign, assignment]

    def step(self, probe: bool) -> int:
        """Samples of one; `probe`: the first of its calls trains nothing."""
        calls = Calls()
        one, other = self._call(calls), self._call(calls)
        loss = other if probe else one + other
        calls.backward(lambda waiting: self.answered.reached_calls(loss, waiting))
        return calls.amount.samples

    def _call(self, calls: Calls) -> Tensor:
        calls.begins(id(self.model), Amount(2, 0), NOTHING, self.answered.next_node())
        out: Tensor = self.model(torch.randn(2, 4)).sum()
        calls.ends(self.answered.next_node())
        return out


def batch_comes(calls: Calls, samples: int, first: int) -> None:
    calls.begins(1, NOTHING, Amount(samples, 0), first)
    calls.ends(first + 2)


def test_a_probe_in_the_first_step_does_not_decide_for_all() -> None:
    loop = Loop()
    assert [loop.step(probe=one) for one in (True, False, False, False)] == [2, 4, 4, 4]


def test_probes_that_begin_with_the_second_step_are_recognised() -> None:
    loop = Loop()
    assert [loop.step(probe=one) for one in (False, True, True, True)] == [4, 2, 2, 2]


def test_after_two_graph_visits_that_agree_the_graph_is_not_visited_again() -> None:
    loop = Loop()
    assert [loop.step(probe=True) for _ in range(6)] == [2] * 6
    assert loop.walks == 2


def test_graph_visits_that_never_agree_are_limited_in_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_counts, "MAX_GRAPH_WALKS", 4)
    loop = Loop()
    told = [loop.step(probe=number % 2 == 0) for number in range(8)]
    assert told[:4] == [2, 4, 2, 4]
    assert loop.walks == 4


def test_batches_of_joined_steps_stay_separate() -> None:
    before, calls = Calls(), Calls()
    batch_comes(before, 4, 0)
    batch_comes(before, 64, 2)
    before.backward(lambda waiting: [True, False])
    batch_comes(calls, 4, 4)
    batch_comes(calls, 4, 6)
    calls.absorb(before)
    batch_comes(calls, 4, 8)
    assert [call.fetched for call in calls.waiting] == [2, 3, 4, 5]
    calls.backward(lambda waiting: [False, True, True, True])
    assert calls.amount.samples == 16  # and not the 64 that were looked at


def test_a_single_step_is_not_changed_by_joining_all_steps() -> None:
    before, calls, whole = Calls(), Calls(), Calls()
    for one in (before, calls):
        batch_comes(one, 4, 0)
        batch_comes(one, 64, 2)
        one.backward(lambda waiting: [True, False])
    whole.absorb(calls)
    whole.absorb(before)
    assert [call.fetched for call in whole.waiting] == [2, 4]
    assert [call.fetched for call in calls.waiting] == [2]
