"""The memory of traced steps by kind and by line: from a real profiler, and from made-up events."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from ridgeline.harness.capture.event_walk import Walk
from ridgeline.harness.capture.memory_watch import stock
from ridgeline.memory.traced_steps import study_traced_steps
from ridgeline.records.memory import DeviceMemory, MemoryKind
from ridgeline.records.step_memory import (
    PHASES,
    LineRange,
    Stock,
    TracedAllocations,
    TracedSpan,
)

WIDTH, ROWS = 64, 128
KEPT: list[torch.Tensor] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.up(x))  # the activations
        return self.down(h)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, keep: bool) -> None:
    x = torch.randn(ROWS, WIDTH)  # the input
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()  # the backward
    optimizer.step()
    if keep:
        KEPT.append(torch.zeros(ROWS, 100))  # the leak


def line_of(comment: str) -> int:
    source = inspect.getsourcefile(step)
    assert source is not None
    with open(source) as file:
        return next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {comment}"))


def traced(keep: bool) -> TracedAllocations:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        step(model, optimizer, keep)
    before = stock(torch, [model], [optimizer])
    profiler: Any = profile(
        activities=[ProfilerActivity.CPU], schedule=lambda number: ProfilerAction.RECORD,
        record_shapes=True, profile_memory=True, with_stack=True,
    )  # fmt: skip
    with profiler:
        for _ in range(4):
            step(model, optimizer, keep)
            profiler.step()
    found = Walk().over(profiler).allocations(before, stock(torch, [model], [optimizer]))
    KEPT.clear()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def recorded() -> TracedAllocations:
    return traced(keep=False)


@pytest.fixture(scope="module")
def host(recorded: TracedAllocations) -> DeviceMemory:
    study = study_traced_steps(recorded, "made up", first_step=7)
    assert study.steps == 4
    assert [device.device for device in study.devices] == ["cpu"]
    return study.devices[0]


PARAMETERS = 4 * (WIDTH * 4 * WIDTH + 4 * WIDTH + 4 * WIDTH * WIDTH + WIDTH)


def test_what_models_and_optimizers_hold_is_known_before_the_trace(host: DeviceMemory) -> None:
    kinds = host.peak.by_kind
    assert kinds[MemoryKind.PARAMETER] == PARAMETERS
    assert kinds[MemoryKind.OPTIMIZER_STATE] == pytest.approx(2 * PARAMETERS, rel=0.01)


def test_activations_are_owned_by_the_line_that_made_them(host: DeviceMemory) -> None:
    owned = {
        (owner.place.line if owner.place else None, owner.kind): owner.bytes
        for owner in host.peak.owners
    }
    # the result of tanh; that of `up` is given back as soon as tanh has read it
    assert owned[line_of("the activations"), MemoryKind.ACTIVATION] == 4 * ROWS * 4 * WIDTH
    assert owned[line_of("the input"), MemoryKind.INPUT] == 4 * ROWS * WIDTH


def test_the_levels_add_up_to_the_peak_and_begin_at_the_first_step(host: DeviceMemory) -> None:
    totals = [sum(column) for column in zip(*host.levels.levels.values(), strict=True)]
    assert max(totals) == host.peak.bytes
    assert host.levels.step_starts_ns[0] == 0
    assert len(host.levels.step_starts_ns) == 4
    assert host.peak.step in range(7, 11)


def test_each_line_has_what_it_allocates_and_gives_back(host: DeviceMemory) -> None:
    lines = {one.place.line: one for one in host.lines if one.place is not None}
    forward = lines[line_of("the activations")]
    assert forward.allocated_bytes == 2 * 4 * ROWS * 4 * WIDTH
    assert forward.net_bytes > 0
    assert lines[line_of("the backward")].net_bytes < 0
    assert lines[line_of("the input")].largest_bytes == 4 * ROWS * WIDTH


def test_steps_that_keep_nothing_do_not_grow(host: DeviceMemory) -> None:
    assert host.growth == ()


def test_what_stays_behind_in_each_step_grows_at_its_line() -> None:
    device = study_traced_steps(traced(keep=True), "made up").devices[0]
    grown = device.growth[0]
    assert grown.place is not None
    assert grown.place.line == line_of("the leak")
    assert grown.bytes_per_step == 4 * ROWS * 100
    assert grown.blocks_per_step == 1


# ------------------------------------------------------------------------------- made-up events

MIB = 2**20
INPUT, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD = (
    PHASES.index(name) for name in ("input", "forward", "backward", "optimizer", "zero-grad")
)


def made_up(
    events: list[tuple[int, int, int, int]], device: str, base: int = 0, **fields: Any
) -> TracedAllocations:
    """Return events of (time, address, bytes, phase) at lines of their phases. A device that tells
    totals begins with `base` bytes."""
    total, allocated = base, []
    for _, _, size, _ in events:
        total += size
        allocated.append(total)
    count = len(events)
    return TracedAllocations(
        places=tuple(LineRange("train.py", 10 + n, 10 + n, "main") for n in range(len(PHASES))),
        devices=(device,), at_ns=tuple(e[0] for e in events), address=tuple(e[1] for e in events),
        bytes=tuple(e[2] for e in events), allocated=tuple(allocated), device=(0,) * count,
        place=tuple(e[3] for e in events), module=(-1,) * count, operator=(-1,) * count,
        phase=tuple(e[3] for e in events), ends_ns=events[-1][0] + 1, **fields,
    )  # fmt: skip


def one_step(at: int) -> list[tuple[int, int, int, int]]:
    return [
        (at + 1, 1, 8 * MIB, FORWARD), (at + 2, 2, 2 * MIB, FORWARD),
        (at + 3, 2, -2 * MIB, FORWARD), (at + 12, 3, 4 * MIB, BACKWARD),
        (at + 13, 1, -8 * MIB, BACKWARD), (at + 22, 4, MIB, OPTIMIZER),
        (at + 23, 4, -MIB, OPTIMIZER), (at + 30, 3, -4 * MIB, ZERO_GRAD),
    ]  # fmt: skip


SPANS = tuple(
    TracedSpan(phase, at + first, at + last, phase)
    for at in (0, 100, 200)
    for phase, first, last in ((FORWARD, 0, 10), (BACKWARD, 10, 20), (OPTIMIZER, 20, 29),
                               (ZERO_GRAD, 29, 40))
)  # fmt: skip
STARTS = (0, 100, 200)
MODEL = (
    Stock(
        device="cuda:0", kind=MemoryKind.PARAMETER, bytes=16 * MIB, tensors=2, addresses=(91, 92)
    ),
)


def test_a_block_is_classed_by_when_it_is_made_and_how_long_it_lives() -> None:
    events = [event for at in STARTS for event in one_step(at)]
    found = made_up(events, "cpu", spans=SPANS, step_starts_ns=STARTS)
    lines = {one.place.line: one for one in _device(found).lines if one.place is not None}
    assert lines[10 + FORWARD].kind is MemoryKind.ACTIVATION
    assert lines[10 + BACKWARD].kind is MemoryKind.GRADIENT
    assert lines[10 + OPTIMIZER].kind is MemoryKind.TEMPORARY
    assert _device(found).peak.by_kind == {
        MemoryKind.ACTIVATION: 8 * MIB,
        MemoryKind.GRADIENT: 4 * MIB,
    }


def test_on_a_gpu_memory_from_before_counts_and_its_releases_are_seen() -> None:
    old = [(5, 77, -3 * MIB, FORWARD), (6, 91, -10 * MIB, FORWARD)]
    events = sorted([*one_step(0), *one_step(100), *old])
    found = made_up(
        events, "cuda:0", base=30 * MIB, before=MODEL, spans=SPANS, step_starts_ns=(0, 100)
    )
    device = _device(found)
    assert device.peak.by_kind[MemoryKind.PARAMETER] == 16 * MIB
    assert device.peak.by_kind[MemoryKind.UNKNOWN] == 14 * MIB
    assert device.peak.bytes == (30 + 8 + 2) * MIB
    assert device.end_bytes == (30 - 3 - 10) * MIB
    assert device.levels.levels[MemoryKind.PARAMETER][-1] == 6 * MIB


def test_a_thread_without_python_gets_the_line_that_called_the_backward() -> None:
    events = [event for at in STARTS for event in one_step(at)]
    found = made_up(events, "cuda:0", spans=SPANS, step_starts_ns=STARTS)
    bare = [-1 if phase == BACKWARD else phase for phase in found.phase]
    device = _device(_replaced(found, place=tuple(bare)))
    assert {one.place.line for one in device.lines if one.place} >= {10 + BACKWARD}
    assert all(one.place is not None for one in device.lines)


def test_a_buffer_of_the_latest_blocks_is_known_to_be_left_behind_only_by_age() -> None:
    kept = [(at + 50, 1000 + at, MIB, FORWARD) for at in STARTS]
    events = sorted([event for at in STARTS for event in one_step(at)] + kept)
    found = made_up(events, "cpu", spans=SPANS, step_starts_ns=STARTS)
    assert [one.bytes_per_step for one in _device(found).growth] == [MIB]
    two_steps = made_up(
        sorted([event for at in STARTS[:2] for event in one_step(at)] + kept[:2]), "cpu",
        spans=SPANS, step_starts_ns=STARTS[:2],
    )  # fmt: skip
    assert _device(two_steps).growth == ()


def test_gradients_from_before_the_trace_go_when_they_are_cleared_on_a_cpu() -> None:
    old = Stock(device="cpu", kind=MemoryKind.GRADIENT, bytes=4 * MIB, tensors=1, addresses=(55,))
    events = [event for at in STARTS for event in one_step(at)]
    cleared = made_up(events, "cpu", spans=SPANS, step_starts_ns=STARTS, before=(old,))
    assert _device(cleared).levels.levels[MemoryKind.GRADIENT][-1] == 0
    filled_with_zeros = made_up(
        events, "cpu", spans=SPANS, step_starts_ns=STARTS, before=(old,), after=(old,)
    )
    assert _device(filled_with_zeros).levels.levels[MemoryKind.GRADIENT][-1] == 4 * MIB


def test_thousands_of_events_are_thinned_and_the_peak_stays() -> None:
    events = []
    for n in range(5000):
        size = 900 * MIB if n == 2345 else MIB
        events += [(10 * n + 1, n, size, FORWARD), (10 * n + 2, n, -size, FORWARD)]
    device = _device(made_up(events, "cpu", step_starts_ns=(0,)))
    (level,) = device.levels.levels.values()
    assert len(level) <= 601
    assert max(level) == device.peak.bytes == 900 * MIB
    assert device.levels.left_out == 10_000 - len(level)


def _device(found: TracedAllocations) -> DeviceMemory:
    return study_traced_steps(found, "made up").devices[0]


def _replaced(found: TracedAllocations, **fields: Any) -> TracedAllocations:
    from msgspec.structs import replace

    return replace(found, **fields)
