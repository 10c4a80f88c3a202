"""What holds memory that grows: the container or the graph, under the name the program uses."""

import random
import weakref
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ridgeline.harness.capture import held_tensors
from ridgeline.harness.capture.held_tensors import HoldersWatch, live_at_failure, reached
from ridgeline.records.memory import MemoryKind
from ridgeline.records.run import StepMemory
from ridgeline.records.step_memory import HeldTensors, Stock

MIB = 2**20


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test rests on how fast this machine is."""
    monkeypatch.setattr(held_tensors, "MAX_LOOK_S", 60.0)


HISTORY: list[Any] = []


class Model(nn.Module):
    seen: list[Any] = []  # noqa: RUF012 - shared by all models, which is the fault

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.cache: dict[int, torch.Tensor] = {}


class Slots:
    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []


def watched(
    each_step: Callable[[int], object], models: tuple[Any, ...] = (), rise: int = MIB,
    steps: int = 30,
) -> tuple[HeldTensors, ...]:  # fmt: skip
    """Return what is found in a program that does `each_step`, and whose memory rises in each."""
    watch = HoldersWatch(torch)
    for step in range(steps):
        each_step(step)
        watch.read(step, StepMemory(host_bytes=100 * MIB + step * rise))
        if watch.is_due:
            watch.look(step, models)
    return watch.found


def tensor() -> torch.Tensor:
    return torch.zeros(MIB // 4)


def remember_in_closure() -> Callable[[torch.Tensor], None]:
    kept: list[torch.Tensor] = []

    def remember(value: torch.Tensor) -> None:
        kept.append(value)

    return remember


def test_a_list_of_a_function_that_runs_is_named_with_the_function() -> None:
    losses: list[torch.Tensor] = []
    (found,) = watched(lambda step: losses.append(tensor()))
    assert (found.holder, found.name, found.owner, found.kind) == (
        "list",
        "losses",
        "local",
        "tensors",
    )
    assert found.owner_name.endswith(
        "test_a_list_of_a_function_that_runs_is_named_with_the_function"
    )
    assert found.file == __file__
    assert found.per_step == 1.0
    assert found.bytes_per_step == MIB


def test_an_attribute_is_named_with_its_class() -> None:
    model = Model()
    (found,) = watched(lambda step: model.cache.update({step: tensor()}), (model,))
    assert (found.holder, found.name, found.owner, found.owner_name) == (
        "dict", "cache", "attribute", "Model",
    )  # fmt: skip


def test_a_list_of_the_class_itself_is_named() -> None:
    Model.seen.clear()
    found = watched(lambda step: Model.seen.append(tensor()))
    assert [(one.name, one.owner_name) for one in found] == [("seen", "Model")]
    Model.seen.clear()


def test_a_global_is_named_with_its_module() -> None:
    found = watched(lambda step: HISTORY.append((step, {"logits": tensor()})))
    HISTORY.clear()
    assert [(one.name, one.owner, one.owner_name) for one in found] == [
        ("HISTORY", "global", __name__)
    ]
    assert found[0].bytes_per_step == MIB


def test_a_closure_is_named_with_its_function() -> None:
    remember = remember_in_closure()
    (found,) = watched(lambda step: remember(tensor()))
    assert (found.name, found.owner) == ("kept", "closure")
    assert found.owner_name.endswith("remember")


def test_hooks_that_pile_up_are_named_with_what_they_hold() -> None:
    model = Model()

    def each(step: int) -> None:
        held = tensor()
        model.linear.register_forward_hook(lambda *call, held=held: None)

    found = watched(each, (model,))
    assert found[0].name == "_forward_hooks"
    assert found[0].owner_name == "Linear"
    assert found[0].bytes_per_step == MIB


def test_an_unbounded_cache_of_results_is_named_with_its_function() -> None:
    @cache
    def table(key: int) -> torch.Tensor:
        return tensor()

    (found,) = watched(table)
    assert found.name == "table (lru_cache)"
    assert found.bytes_per_step == MIB


def test_a_sum_that_keeps_its_graph_is_named() -> None:
    weight = torch.ones(3, requires_grad=True)
    total = torch.zeros(())

    def each(step: int) -> None:
        nonlocal total
        total = total + (weight * 2).sum()

    found = watched(each)
    assert (found[0].holder, found[0].name, found[0].kind) == ("tensor", "total", "graph")
    assert found[0].per_step >= 1


def test_losses_kept_with_their_graphs_are_told_apart_from_plain_tensors() -> None:
    weight = torch.ones(3, requires_grad=True)
    losses: list[torch.Tensor] = []
    found = watched(lambda step: losses.append((weight * 2).sum()))
    assert [(one.name, one.kind) for one in found] == [("losses", "graph")]


def test_arrays_count_like_tensors() -> None:
    arrays: list[Any] = []
    (found,) = watched(lambda step: arrays.append(np.zeros(MIB, np.uint8)))
    assert (found.name, found.bytes_per_step) == ("arrays", MIB)


@pytest.mark.parametrize("name", ["deque", "ring", "overwritten", "nothing"])
def test_buffers_of_fixed_length_are_not_named(name: str) -> None:
    latest: deque[torch.Tensor] = deque(maxlen=4)
    ring = [tensor() for _ in range(40)]
    values: dict[int, torch.Tensor] = {}

    def each(step: int) -> None:
        if name == "deque":
            latest.append(tensor())
        elif name == "ring":
            ring[step % 40] = tensor()
        elif name == "overwritten":
            values[step % 3] = tensor()

    assert watched(each) == ()


def test_nothing_is_looked_at_while_memory_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(held_tensors, "_Look", lambda *given: looks.append(1))
    assert watched(lambda step: None, rise=0) == ()
    assert watched(lambda step: None, rise=1000) == ()
    assert looks == []


def test_memory_that_rises_once_and_then_stands_still_is_not_looked_at() -> None:
    watch = HoldersWatch(torch)
    for step in range(30):
        watch.read(step, StepMemory(host_bytes=100 * MIB + min(step, 3) * MIB))
        assert not watch.look(step, ())


def test_the_program_is_left_as_it_was() -> None:
    losses: list[torch.Tensor] = []
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    watched(lambda step: losses.append(tensor()))
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    gone = weakref.ref(losses[0])
    losses.clear()
    assert gone() is None  # no look keeps what it saw


def test_objects_that_refuse_to_be_read_are_passed_over() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise SystemExit(name)

        def __len__(self) -> int:
            raise SystemExit("len")

        def __eq__(self, other: object) -> bool:
            raise SystemExit("eq")

        __hash__ = object.__hash__

    things: list[Any] = []
    slots = Slots()

    def each(step: int) -> None:
        things.append(Hostile())
        things.append(partial(print, tensor()))
        slots.kept.append(tensor())

    found = watched(each)
    assert [one.name for one in found] == ["things"]


def test_a_look_ends_at_its_limit_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    HISTORY.append([])
    for _ in range(50):
        HISTORY[0] = [HISTORY[0]]

    def each(step: int) -> None:
        inner = HISTORY
        while inner and type(inner[0]) is list:
            inner = inner[0]
        inner.append(tensor())

    assert len(watched(each)) == 1
    monkeypatch.setattr(held_tensors, "MAX_OBJECTS", 10)
    assert watched(each) == ()
    HISTORY.clear()


def test_a_long_list_is_visited_at_both_ends_only() -> None:
    HISTORY.extend([object()] * 5 + [[n] for n in range(100_000)])
    seen = [item for item, name in reached((), ()) if name.name == "HISTORY[…]"]
    HISTORY.clear()
    assert len(seen) <= held_tensors.MAX_ENTRIES_VISITED


def test_what_lives_when_memory_ran_out_is_told_by_kind_and_by_holder() -> None:
    model = Model()
    held = {p.untyped_storage().data_ptr(): p for p in model.parameters()}

    def run() -> None:
        kept = [tensor() for _ in range(100)]
        activation = model.linear(torch.ones(4)).exp()
        raise MemoryError(len(kept) + activation.dim())

    try:
        run()
    except MemoryError as error:
        parameters = Stock(
            device="cpu", kind=MemoryKind.PARAMETER, bytes=0, tensors=2, addresses=tuple(held)
        )
        live, holders = live_at_failure(torch, [model], [parameters], error)
    sizes = {one.kind: one.bytes for one in live}
    assert sizes[MemoryKind.PARAMETER] == 4 * (16 + 4)
    assert sizes[MemoryKind.ACTIVATION] == 16
    kept = next(one for one in holders if one.name == "kept")
    assert kept.entries == 100
    assert kept.bytes == 100 * MIB
    assert kept.owner_name.endswith("run")


def test_a_list_that_is_made_anew_in_each_step_is_not_named() -> None:
    batches: list[Any] = []

    def each(step: int) -> None:
        batches[:] = [[tensor() for _ in range(10)], [tensor() for _ in range(step)]]

    assert watched(each) == ()


def test_a_first_look_that_takes_too_long_is_begun_again_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses: list[torch.Tensor] = []
    monkeypatch.setattr(held_tensors, "MAX_LOOK_S", -1.0)
    looks: list[bool] = []
    watch = HoldersWatch(torch)
    for step in range(60):
        losses.append(tensor())
        watch.read(step, StepMemory(host_bytes=(100 + step) * MIB))
        looks.append(watch.is_due and watch.look(step, ()))
    assert sum(looks) == held_tensors.MAX_FIRST_LOOKS
    assert watch.found == ()
