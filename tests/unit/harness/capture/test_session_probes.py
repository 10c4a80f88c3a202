"""Samples of a step are those it trains on; and an optimizer that is gone does not come back."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.harness.capture.step_boundaries import Anchor, Turn
from tests.unit.harness.capture.test_session import loader, net, session

__all__ = ["session"]


def samples(seen: Any) -> list[int]:
    return [step.samples for step in seen.steps]


def test_a_generators_probe_is_no_sample_of_the_next_step(session: Any) -> None:
    generator, critic = net(), nn.Linear(2, 1)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
    scores = []
    with session() as seen:
        for _ in range(5):
            fake = generator(torch.randn(16, 4))
            (critic(torch.randn(16, 2)).mean() - critic(fake.detach()).mean()).backward()
            of_critic.step()
            critic(fake).mean().backward()
            of_generator.step()
            scores.append(critic(generator(torch.randn(96, 4))).mean())  # in training mode, kept
    assert samples(seen) == [16] * 5
    assert not seen.capture.problems


def test_a_look_at_other_data_without_a_backward_does_not_count(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with session() as seen:
        for (x,) in loader(16):
            model(x).sum().backward()
            optimizer.step()
            model(next(iter(loader(8, 8)))[0])  # forgot no_grad
    assert samples(seen) == [4] * 4


def test_a_batch_drawn_for_its_shape_does_not_count(session: Any) -> None:
    model, data = net(), loader(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with session() as seen:
        assert next(iter(data))[0].shape == (4, 4)
        for (x,) in data:
            model(x).sum().backward()
            optimizer.step()
    assert samples(seen) == [4] * 4


def test_batches_of_two_loaders_that_are_trained_on_both_count(session: Any) -> None:
    model, one = net(), loader(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with session() as seen:
        for (x,), (y,) in zip(one, one, strict=True):
            (model(x) - model(y)).pow(2).sum().backward()
            optimizer.step()
    assert samples(seen) == [8] * 4


def test_a_batch_counts_though_a_module_without_a_graph_has_it_first(session: Any) -> None:
    model, ready, frozen = net(), nn.Flatten(), net().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with session() as seen:
        for (x,) in loader(16):
            target = frozen(ready(x))
            (model(x) - target).pow(2).sum().backward()
            optimizer.step()
    assert samples(seen) == [4] * 4


def test_a_batch_counts_whose_first_module_learns_only_later(session: Any) -> None:
    generator, critic = net(), nn.Linear(4, 1)
    mouth = nn.Linear(2, 4)
    every = [*generator.parameters(), *critic.parameters(), *mouth.parameters()]
    optimizer = torch.optim.SGD(every, lr=0.01)
    with session() as seen:
        for (x,) in loader(16):
            fake = mouth(generator(torch.randn(4, 4)))
            (critic(x).mean() - critic(fake.detach()).mean()).backward()
            critic(fake).mean().backward()
            optimizer.step()
    assert samples(seen) == [4] * 4


def test_a_batch_whose_forward_raised_counts_in_the_next_step(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with session() as seen:
        for number, (x,) in enumerate(loader(24)):
            try:
                loss = model(x[:, :3] if number == 3 else x).sum()
            except RuntimeError:
                continue
            loss.backward()
            optimizer.step()
    assert samples(seen) == [4, 4, 4, 8, 4]


def test_a_probe_in_an_except_block_does_not_count(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with session() as seen:
        for _ in range(4):
            try:
                raise MemoryError("too large")
            except MemoryError:  # tried again with less
                model(torch.randn(96, 4))
                model(torch.randn(16, 4)).sum().backward()
            optimizer.step()
    assert samples(seen) == [16] * 4


def test_a_batch_whose_forward_raised_in_an_except_block_counts_too(session: Any) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with session() as seen:
        for number, (x,) in enumerate(loader(24)):
            try:
                raise MemoryError("too large")
            except MemoryError:
                try:
                    loss = model(x[:, :3] if number == 3 else x).sum()
                except RuntimeError:
                    continue
                loss.backward()
            optimizer.step()
    assert samples(seen) == [4, 4, 4, 8, 4]


@pytest.mark.parametrize("calls", [3, 200])
def test_each_call_of_a_cell_counts(session: Any, calls: int) -> None:
    cell = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    with session() as seen:
        for _ in range(4):
            state = torch.zeros(2, 4)
            for _ in range(calls):
                state = cell(state).tanh()
            state.sum().backward()
            optimizer.step()
    assert samples(seen)[1:] == [2 * calls] * 3


def test_a_new_optimizer_with_the_id_of_a_deleted_one_is_new(session: Any) -> None:
    used = []
    with session() as seen:
        for _ in range(40):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            used.append(id(optimizer))
            for _ in range(2):
                model(torch.randn(4, 4)).sum().backward()
                optimizer.step()
            del model, optimizer
    changes = [one for one, other in pairwise(used) if one != other]
    if len(set(changes)) == len(changes):
        pytest.skip("no id was used again after another's")
    assert len(seen.steps) == 80
    assert {step.optimizer_steps for step in seen.steps if step.detailed} == {1}
    assert samples(seen)[:30] == [4] * 30
    assert not seen.capture.problems


def test_two_new_optimizers_take_over_from_two_deleted_ones() -> None:
    anchor = Anchor()
    for who in (1, 2, 1, 2):
        anchor.stepped(who)
    assert anchor.cyclic
    anchor.gone(1)
    anchor.gone(2)
    assert not anchor.cyclic
    for who in (1, 2, 1):
        anchor.stepped(who)
    assert anchor.cyclic
    assert anchor.stepped(2) is Turn.ENDS
