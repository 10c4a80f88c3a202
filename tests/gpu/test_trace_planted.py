"""Traces recorded on this GPU with one fault planted each: the cause named must be the one planted,
its time must be what was planted, and the line must be the function that did it."""

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from ridgeline.records.trace import IdleCause, TraceStudy
from ridgeline.trace.study import study

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = 4
PAUSE = 0.02


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, pause: float) -> None:
        self.pause = pause

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.pause)
        return torch.ones(256)


def work(x: torch.Tensor, times: int = 20) -> torch.Tensor:
    for _ in range(times):
        x = (x @ x).clamp(-1, 1)
    return x


def record(folder: Path, step: Callable[[int], None], steps: int = STEPS) -> TraceStudy:
    step(0)
    torch.cuda.synchronize()
    path = folder / "recorded.json.gz"
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=0, warmup=1, active=steps),
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as prof:
        for number in range(steps + 1):
            step(number)
            prof.step()
    return study([path], cache=False)[0]


def cause(found: TraceStudy, name: str) -> IdleCause:
    return next(c for c in found.idle.causes if c.cause == name)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2048, 2048, device="cuda") / 64


def near(ns: int, seconds: float) -> bool:
    return seconds * 0.8 <= ns / 1e9 <= seconds * 1.4


def test_a_slow_dataset_is_input_at_its_getitem(tmp_path: Path, x: torch.Tensor) -> None:
    batches: Iterator[torch.Tensor] = iter(
        torch.utils.data.DataLoader(Slow(PAUSE / 4), batch_size=4)
    )

    def step(number: int) -> None:
        batch = next(batches)
        work(x)
        batch.sum()

    found = record(tmp_path, step)
    told = cause(found, "input")
    assert found.idle.causes[0].cause == "input"
    assert near(told.ns, PAUSE * (STEPS - 1)) or near(told.ns, PAUSE * STEPS)
    assert any(place.function == "__getitem__" for place in told.places)


def test_item_each_step_is_synchronisation_where_it_stands(tmp_path: Path, x: torch.Tensor) -> None:
    def reads_the_loss(y: torch.Tensor) -> float:
        return y.sum().item()

    def step(number: int) -> None:
        for _ in range(10):
            reads_the_loss(work(x, 2))

    found = record(tmp_path, step)
    told = cause(found, "synchronisation")
    assert told.share > 0.5, found.idle.causes
    assert told.places[0].function in ("reads_the_loss", "step")


def test_many_tiny_kernels_are_launch_bound(tmp_path: Path) -> None:
    small = torch.ones(8, device="cuda")

    def step(number: int) -> None:
        y = small
        for _ in range(300):
            y = y + 1

    found = record(tmp_path, step)
    assert cause(found, "launch-bound").share > 0.6, found.idle.causes
    assert found.launch.small_kernels > 0.9


def test_sleeping_python_is_the_programs_own(tmp_path: Path, x: torch.Tensor) -> None:
    def dawdles() -> None:
        end = time.perf_counter() + PAUSE
        while time.perf_counter() < end:
            pass

    def step(number: int) -> None:
        work(x, 2)
        dawdles()

    found = record(tmp_path, step)
    told = found.idle.causes[0]
    assert told.cause == "other host"
    assert told.places[0].function == "dawdles"
    assert near(told.ns, PAUSE * (STEPS - 1)) or near(told.ns, PAUSE * STEPS)


def test_collecting_garbage_is_named(tmp_path: Path, x: torch.Tensor) -> None:
    kept = [[i] for i in range(2_000_000)]

    def step(number: int) -> None:
        work(x, 2)
        gc.collect()

    found = record(tmp_path, step)
    assert kept
    assert found.idle.causes[0].cause == "garbage collection", found.idle.causes


def test_allocating_anew_is_the_allocators(tmp_path: Path, x: torch.Tensor) -> None:
    def step(number: int) -> None:
        work(x, 1)
        for _ in range(6):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.empty(1 << 30, dtype=torch.uint8, device="cuda").fill_(1)

    found = record(tmp_path, step)
    assert cause(found, "allocator").share > 0.4, found.idle.causes


def test_pageable_copies_are_transfer(tmp_path: Path, x: torch.Tensor) -> None:
    host = torch.ones(1 << 26)

    def step(number: int) -> None:
        work(x, 1)
        host.double().to("cuda", dtype=torch.float16)

    found = record(tmp_path, step)
    names = {c.cause for c in found.idle.causes[:3]}
    assert "transfer" in names, found.idle.causes


def test_a_cuda_graph_is_busy_not_idle(tmp_path: Path, x: torch.Tensor) -> None:
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work(x)

    found = record(tmp_path, lambda number: graph.replay())
    device = found.devices[0]
    if device.busy_ns is None:
        assert "graph" in device.trust.why  # the kernels were not recorded, and it says so
        return
    assert device.busy_ns / device.window.ns > 0.8
    assert any(region.kind == "graph" for region in found.regions)


def test_a_compiled_function_shows_its_region_and_first_call_compiles(tmp_path: Path) -> None:
    small = torch.randn(256, 256, device="cuda")
    compiled = torch.compile(lambda y: (y @ y).relu() + 1)

    def step(number: int) -> None:
        compiled(small[: 200 + number] if number > 3 else small)

    found = record(tmp_path, lambda number: step(0))
    assert any(region.kind == "compiled" for region in found.regions), found.regions


def test_matmul_attains_a_believable_share_of_its_ceiling(tmp_path: Path) -> None:
    y = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def step(number: int) -> None:
        for _ in range(5):
            torch.mm(y, y)

    found = record(tmp_path, step)
    row = next(r for r in found.roofline.rows if r.op == "aten::mm")
    assert row.bound == "compute"
    assert row.attained is not None
    assert 0.5 < row.attained <= 1.05
    assert row.flops == 2 * 8192**3
    assert found.devices[0].idle_ns is not None
    assert found.launch.tensor_core_time == pytest.approx(1.0)
