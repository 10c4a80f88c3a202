"""Memory in use at the end of steps, by the allocators' own counts."""

from typing import Any

import pytest
import torch

from ridgeline.harness.capture import memory_watch
from ridgeline.harness.capture.memory_watch import (
    PAUSE_FACTOR,
    MemoryReadings,
    malloc_bytes,
    stock,
)
from ridgeline.records.memory import MemoryKind

MIB = 2**20
counted = pytest.mark.skipif(malloc_bytes() is None, reason="no mallinfo2 here")


class Clock:
    """Moves by a microsecond each time it is asked."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1_000
        return self.now


@counted
def test_a_tensor_is_counted_to_the_byte_and_given_back() -> None:
    read = malloc_bytes()
    assert read is not None
    before = read()
    held = torch.zeros(10 * MIB, dtype=torch.uint8)
    assert read() - before == pytest.approx(10 * MIB, rel=0.01)
    del held
    assert read() - before < MIB


@counted
def test_a_reading_is_followed_by_a_pause_in_proportion_to_its_cost() -> None:
    clock = Clock()
    readings = MemoryReadings(torch, clock)
    assert readings.read_if_due(None, clock()) is not None
    assert readings.read_if_due(None, clock()) is None
    clock.now += PAUSE_FACTOR * 1_000
    assert readings.read_if_due(None, clock()) is not None
    assert readings.last(None) is not None  # due or not


def test_without_a_counter_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_watch, "MIN_PLAUSIBLE_BYTES", 2**62)
    clock = Clock()
    assert MemoryReadings(torch, clock).read_if_due(None, clock()) is None


def test_an_allocator_that_raises_is_read_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Clock(), []
    readings = MemoryReadings(torch, clock)

    def fails(cuda: int | None) -> None:
        asked.append(cuda)
        raise RuntimeError("counts nothing")

    monkeypatch.setattr(readings, "read", fails)
    assert readings.read_if_due(0, clock()) is None
    assert readings.read_if_due(0, clock() + 10**15) is None
    assert asked == [0]


def test_the_stock_counts_shared_storages_once_and_calls_no_method_of_the_model() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4, bias=False)
            self.tied = torch.nn.Linear(4, 4, bias=False)
            self.tied.weight = self.linear.weight
            self.register_buffer("mean", torch.zeros(10))

        def parameters(self, recurse: bool = True) -> Any:
            raise AssertionError("the program's own method")

        buffers = parameters

    model = Odd()
    optimizer = torch.optim.Adam([model.linear.weight])
    model.linear(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    sizes = {one.kind: (one.bytes, one.tensors) for one in stock(torch, [model], [optimizer])}
    assert sizes[MemoryKind.PARAMETER] == (64, 1)
    assert sizes[MemoryKind.BUFFER] == (40, 1)
    assert sizes[MemoryKind.GRADIENT] == (64, 1)
    assert sizes[MemoryKind.OPTIMIZER_STATE] == (2 * 64 + 4, 3)
