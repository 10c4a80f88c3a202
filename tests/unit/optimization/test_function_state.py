"""What a step function can reach is put back bit for bit, in the objects it was in."""

import functools
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ridgeline.optimization import function_state
from ridgeline.optimization.function_state import SavedProcess, SavedState
from tests.unit.optimization.function_case import Case, differing

COUNTED = [0]


def kept_of(*whole: Any, step: Any = None, data: Any = ()) -> SavedState:
    return SavedState(torch, whole, step or (lambda batch: None), data)


def test_steps_taken_meanwhile_are_undone() -> None:
    case = Case()
    kept = kept_of(case.model, case.optimizer, step=case.step, data=case.loader)
    process, before = SavedProcess(torch), case.state()
    for batch in case.loader:
        case.step(case.model, case.optimizer, batch)
    assert len(differing(before, case.state())) > 5
    process.restore()
    kept.restore()
    assert differing(before, case.state()) == []


def test_what_fixes_apply_to_a_model_is_removed() -> None:
    case = Case()
    kept, before = kept_of(case.model, case.optimizer), case.state()
    model = case.model
    model.conv.weight.data = model.conv.weight.data.to(memory_format=torch.channels_last)
    model.forward = lambda x: x  # type: ignore[method-assign]
    model.head.register_forward_hook(lambda *given: None)
    model.head.requires_grad_(False)
    model.eval()
    model.norm = nn.Identity()  # type: ignore[assignment]
    model.head.weight.grad = None
    kept.restore()
    assert differing(before, case.state()) == []
    assert isinstance(model.norm, nn.BatchNorm2d)


def test_names_a_step_binds_again_are_put_back() -> None:
    total, average = 0.0, torch.zeros(3)
    notes: dict[str, Any] = {"best": [1, 2]}

    def step(batch: Any) -> None:
        nonlocal total, average
        total += 1
        average = average + 1
        notes["best"].append(3)
        notes["new"] = total
        COUNTED[0] += 1

    kept, was = kept_of(step=step), average
    COUNTED[0] = 0
    kept = kept_of(step=step)
    step(None)
    kept.restore()
    assert (total, COUNTED, notes) == (0.0, [0], {"best": [1, 2]})
    assert average is was


def test_generators_and_arrays_draw_and_hold_what_they_did() -> None:
    held = SimpleNamespace(
        torch=torch.Generator().manual_seed(1), numpy=np.random.default_rng(1),
        old=np.random.RandomState(1), python=random.Random(1), array=np.zeros(3),
    )  # fmt: skip
    values = list(vars(held).values())

    def drawn() -> list[float]:
        found = [float(torch.rand(1, generator=held.torch)), float(held.numpy.random())]
        return [*found, float(held.old.rand()), held.python.random()]

    kept = kept_of(values)
    first = drawn()
    held.array += 1
    kept.restore()
    assert drawn() == first
    assert held.array.sum() == 0


def test_batches_in_a_list_are_put_back_and_tensors_of_a_dataset_are_not_copied() -> None:
    case, batches = Case(), [torch.zeros(4)]
    kept, other = kept_of(data=batches), kept_of(data=case.loader)
    batches[0] += 1
    case.loader.dataset.images.zero_()
    kept.restore()
    other.restore()
    assert batches[0].sum() == 0
    assert case.loader.dataset.images.sum() == 0


def test_a_step_made_of_parts_is_followed() -> None:
    counter = [0]

    def inner(counts: list[int], batch: Any) -> None:
        counts[0] += 1

    for step in (functools.partial(inner, counter), torch.no_grad()(lambda batch: counter)):
        kept = kept_of(step=step)
        counter[0] = 7
        kept.restore()
        assert counter == [0]


def test_bindings_tell_what_a_step_sets_in_python() -> None:
    case = Case()
    kept = kept_of(case.model, case.optimizer, step=case.step)
    before = kept.bindings()
    with torch.no_grad():
        case.model.head.weight.add_(1)
    assert kept.bindings() == before
    case.one_step()
    now = kept.bindings()
    changed = {name.partition(" (")[0] for name in now if now[name] != before.get(name)}
    assert {"Net.calls", "Net.shapes", "Case.taken", "StepLR.last_epoch"} <= changed


def test_a_second_model_that_the_step_trains_is_put_back_whatever_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(function_state, "MAX_TENSOR_BYTES", 8)
    second, data = nn.Linear(30, 30), torch.zeros(30, 30)

    def step(batch: Any) -> None:
        with torch.no_grad():
            second.weight.add_(1)
            data.add_(1)

    was = second.weight.clone()
    kept = kept_of(step=step)
    step(None)
    kept.restore()
    assert torch.equal(second.weight, was)
    assert data.sum() == 900  # larger than that, it is data


def test_what_cannot_be_put_back_does_not_keep_the_rest_from_it() -> None:
    case = Case()
    kept, before = kept_of(case.model, case.optimizer), case.state()
    kept._back.insert(0, lambda: [][0])
    case.one_step()
    with pytest.raises(IndexError):
        kept.restore()
    assert differing({"model": before["model"]}, case.state()) == []


def test_a_step_typed_at_a_prompt_is_followed() -> None:
    names: dict[str, Any] = {"__name__": "typed", "counts": [0]}
    exec("def step(batch):\n    counts[0] += 1", names)  # its file is "<string>"
    kept = kept_of(step=names["step"])
    names["step"](None)
    kept.restore()
    assert names["counts"] == [0]
