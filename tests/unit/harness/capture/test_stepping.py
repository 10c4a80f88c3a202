"""Where a step ends, for each kind of loop, as the seams would tell it."""

import pytest

from ridgeline.harness.capture.step_boundaries import (
    CALLS_WITHOUT_BACKWARD,
    Anchor,
    End,
    Stepping,
    Turn,
)


def train(stepping: Stepping, optimizer: int = 1, backwards: int = 1) -> list[End]:
    ends = []
    for _ in range(backwards):
        ends.append(stepping.training_forward_begins())
        ends.append(stepping.call_done(99, training=True))
        stepping.backward_done()
    ends.append(stepping.optimizer_stepped(optimizer))
    return ends


def test_each_optimizer_step_ends_one() -> None:
    stepping = Stepping()
    for _ in range(3):
        assert train(stepping) == [End.NO, End.NO, End.PLAIN]
    assert stepping.mode == "optimizer"
    assert stepping.counted == 3


def test_accumulated_backwards_are_parts_of_the_first_step_once_the_optimizer_steps() -> None:
    stepping = Stepping()
    first = train(stepping, backwards=3)
    assert first[-1] is End.MERGE
    assert stepping.counted == 1
    assert [e for e in train(stepping, backwards=3) if e is not End.NO] == [End.PLAIN]


def test_the_later_of_two_optimizers_ends_the_iteration() -> None:
    stepping = Stepping()
    ends = [stepping.optimizer_stepped(who) for who in (1, 2, 1, 2, 1, 2)]
    assert ends == [End.PLAIN, End.PLAIN, End.EARLIER, End.PLAIN, End.NO, End.PLAIN]
    assert stepping.counted == 3


def test_a_generator_step_after_five_critic_steps_ends_the_iteration() -> None:
    stepping = Stepping()
    ends = [stepping.optimizer_stepped(who) for who in (1, 1, 1, 1, 1, 2) * 3]
    assert ends[:7] == [End.PLAIN] * 6 + [End.EARLIER]
    assert [e for e in ends[7:] if e is not End.NO] == [End.PLAIN, End.PLAIN]
    assert stepping.counted == 3


def test_one_generator_step_before_five_critic_steps_is_an_iteration_too() -> None:
    stepping = Stepping()
    ends = [stepping.optimizer_stepped(who) for who in (1, 2, 2, 2, 2, 2) * 4]
    assert ends[6] is End.MERGE
    assert [e for e in ends[7:] if e is not End.NO] == [End.PLAIN] * 2


def test_one_optimizer_per_parameter_makes_one_step_per_iteration() -> None:
    stepping = Stepping()
    for _ in range(4):
        for who in range(30):
            stepping.optimizer_stepped(who)
    assert stepping.counted == 4


@pytest.mark.parametrize("before", [5, 20])
def test_a_second_stage_with_an_optimizer_of_its_own_is_followed(before: int) -> None:
    stepping = Stepping()
    ends = [stepping.optimizer_stepped(1) for _ in range(before)]
    ends += [stepping.optimizer_stepped(2) for _ in range(40)]
    assert ends == [End.PLAIN] * (before + 40)


def test_a_critic_trained_alone_first_keeps_its_steps() -> None:
    stepping = Stepping()
    for who in [1] * 30 + [2, 1] * 5:
        stepping.optimizer_stepped(who)
    assert stepping.counted == 30 + 5


def test_without_an_optimizer_a_forward_after_a_backward_begins_the_next() -> None:
    stepping = Stepping()
    ends = []
    for _ in range(3):
        ends.append(stepping.training_forward_begins())
        stepping.call_done(1, training=True)
        stepping.backward_done()
    assert ends == [End.NO, End.PLAIN, End.PLAIN]
    assert stepping.mode == "backward"


def test_inference_with_a_loader_counts_its_batches() -> None:
    stepping = Stepping()
    ends = []
    for _ in range(3):
        ends.append(stepping.input_begins())
        stepping.call_done(1, training=False)
        stepping.call_done(2, training=False)
    assert ends == [End.NO, End.PLAIN, End.PLAIN]
    assert stepping.mode == "call"


def test_inference_without_a_loader_counts_calls() -> None:
    stepping = Stepping()
    ends = [stepping.call_done(who, training=False) for who in (1, 1, 1, 2, 1)]
    assert ends == [End.PLAIN] * 3 + [End.NO, End.PLAIN]


def test_where_two_modules_take_turns_the_later_ends_the_step() -> None:
    stepping = Stepping()
    ends = [stepping.call_done(who, training=False) for who in (1, 2, 1, 2, 1, 2)]
    assert ends == [End.PLAIN, End.DROP, End.NO, End.PLAIN, End.NO, End.PLAIN]
    assert stepping.counted == 3


def test_a_module_called_once_before_another_takes_over_is_no_step() -> None:
    stepping = Stepping()
    for who in (1, 2, 2, 2, 2):
        stepping.call_done(who, training=False)
    assert stepping.counted == 4


def test_inference_in_training_mode_is_understood_after_some_calls() -> None:
    stepping = Stepping()
    ends = [stepping.call_done(1, training=True) for _ in range(CALLS_WITHOUT_BACKWARD + 1)]
    assert ends[:2] == [End.NO, End.NO]
    assert ends[2:] == [End.PLAIN, End.PLAIN]


@pytest.mark.parametrize("evaluations", [1, 400])
def test_an_evaluation_before_training_is_no_step(evaluations: int) -> None:
    stepping = Stepping()
    for _ in range(evaluations):
        stepping.call_done(1, training=False)
    assert train(stepping)[-1] is End.DROP
    assert stepping.counted == 1


def test_calls_of_ridgeline_step_take_precedence() -> None:
    stepping = Stepping()
    train(stepping)
    assert stepping.user_ended_step() is End.MERGE
    assert train(stepping)[-1] is End.NO
    assert stepping.user_ended_step() is End.PLAIN
    assert stepping.counted == 2


def test_an_anchor_that_no_longer_steps_is_replaced() -> None:
    anchor = Anchor()
    for _ in range(3):
        anchor.stepped(1)
        anchor.stepped(2)
    turns = [anchor.stepped(1) for _ in range(20)]
    assert turns[0] is Turn.GOES_ON
    assert turns[-5:] == [Turn.ENDS] * 5
