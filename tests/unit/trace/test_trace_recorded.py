"""A trace torch wrote just now, on the CPU: read whole, and what was run is what is told."""

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from ridgeline.records.trace import TraceStudy, TraceVerdict
from ridgeline.trace.study import study
from ridgeline.trace.trace import Trace

STEPS = 3


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    with record_function("## own span ##"):
        model(torch.ones(16, 64)).sum().backward()
    optimizer.step()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run.json.gz"
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters())
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS),
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(path)),
    ) as prof:
        for _ in range(STEPS + 1):
            step(model, optimizer)
            prof.step()
    return path


@pytest.fixture(scope="module")
def found(recorded: Path) -> tuple[TraceStudy, Trace]:
    told, (trace,) = study([recorded], cache=False, limit=1000)
    return told, trace


def test_every_event_is_read(recorded: Path, found: tuple[TraceStudy, Trace]) -> None:
    import gzip

    events = json.loads(gzip.decompress(recorded.read_bytes()))["traceEvents"]
    assert found[1].origin.events == len(events)
    assert found[1].origin.losses == ()


def test_operators_are_counted_as_they_were_called(found: tuple[TraceStudy, Trace]) -> None:
    rows = {row.name: row for row in found[0].ops}
    assert rows["aten::linear"].count == 2 * STEPS
    assert rows["aten::relu"].count == STEPS
    shapes = {row.shape for row in found[0].shapes if row.name == "aten::addmm"}
    assert len(shapes) == 2


def test_steps_phases_and_modules_are_those_of_the_program(
    found: tuple[TraceStudy, Trace],
) -> None:
    told, trace = found
    assert told.window.steps == STEPS
    assert told.devices == ()
    assert told.verdict is not None
    assert told.verdict.code == TraceVerdict.HOST_ONLY
    phases = {phase.phase: phase.host_ns for phase in told.phases}
    assert all(phases[name] > 0 for name in ("forward", "backward", "optimizer"))
    assert sum(phases.values()) == told.window.ns
    assert {row.kind for row in told.modules} >= {"Sequential", "Linear", "ReLU"}
    assert any("own span" in trace.text(int(code)) for code in trace.annotations.name)


def test_memory_is_drawn_and_nothing_is_said_to_be_missing_that_is_there(
    found: tuple[TraceStudy, Trace],
) -> None:
    told, _ = found
    assert told.memory
    assert told.memory[0].device == "cpu"
    assert told.memory[0].peak_bytes > 0
    assert len(told.missing) == 1
    assert "CUDA" in told.missing[0]
