"""Cases for the rules of layouts and kernels: a step of 100 ms, its operators given by the test."""

from typing import Any

from ridgeline.diagnosis.case import Case
from ridgeline.records.machine import Ceiling, Device
from ridgeline.records.run import Capture, Flags, ModuleSeen, OptimizerSeen
from ridgeline.records.run_summary import MemoryUse, StepTimes
from ridgeline.records.sites import OpSite, Sites
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import KernelRow, Place, TraceStudy, Window
from ridgeline.source.file import SourceFiles

MS = 1e6
FILE = "net.py"
STEPS = 3


def device(kind: str = "cuda") -> Device:
    rates = {"float32": 50e12, "tf32": 400e12, "bfloat16": 800e12, "float16": 800e12}
    if kind == "cpu":
        rates = {"float32": 200e9}
    peaks = [
        Ceiling(quantity="matmul", value=value, unit="FLOP/s", source="measured", dtype=dtype)
        for dtype, value in rates.items()
    ]
    moving = Ceiling(
        quantity="copy", value=4e12 if kind == "cuda" else 20e9, unit="B/s", source="measured"
    )
    return Device(kind=kind, index=0, name="made up", memory_bytes=0, ceilings=(*peaks, moving))  # type: ignore[arg-type]


def place(line: int, function: str = "forward") -> Place:
    return Place(file=FILE, line=line, function=function)


def site(op: str, dims: tuple[Any, ...], ms: float, *, gpu: bool = True, **changed: Any) -> OpSite:
    """Once a step, all of it exposed; float unless types are given."""
    given: dict[str, Any] = {
        "op": op, "dims": dims, "types": tuple("float" if d else "Scalar" for d in dims),
        "calls": 1.0, "device_ns": ms * MS if gpu else 0.0,
        "host_ns": 0.01 * MS if gpu else ms * MS,
        "exposed_ns": ms * MS, "phase": "forward", "dtype": "float32", "bytes": 1.0,
    }  # fmt: skip
    return OpSite(**{**given, **changed})


def case(
    *sites: OpSite, source: str = "", gpu: bool = True, flags: Flags | None = None,
    called_at: str = "", optimizers: tuple[OptimizerSeen, ...] = (),
    kernels: tuple[KernelRow, ...] = (), peak: int = 0, shapes: bool = True, **changed: Any,
) -> Case:  # fmt: skip
    """Of a run where there are flags, else of a trace alone. The device is busy all the time."""
    seen = None
    if flags is not None:
        model = ModuleSeen(name="Net", calls=40, parameters=1000, place=called_at)
        seen = Capture(flags=flags, modules=(model,), optimizers=optimizers)
    window = Window(start_ns=0, end_ns=round(STEPS * 100 * MS), basis="steps", steps=STEPS)
    given: dict[str, Any] = {
        "kind": "run" if seen else "trace", "on_gpu": gpu, "capture": seen,
        "times": StepTimes(mean_ms=100.0, median_ms=100.0) if seen else StepTimes(),
        "work": StepWork(
            device="cuda" if gpu else "cpu", steps=STEPS, step_ms=100.0, flops=0, all_flops=0,
            skipped_flops=0, bytes=0, coverage=1, operator_ms=95.0, op_share=0.95,
        ),
        "memory": MemoryUse(
            device_peak_bytes=peak if gpu else None, host_peak_bytes=None if gpu else peak
        ),
        "study": TraceStudy(files=("t",), events=1, label="t", window=window, kernels=kernels),
        "device": device("cuda" if gpu else "cpu"),
        "sites": Sites(ops=sites, stacks=True, shapes=shapes, steps=STEPS),
        "sources": SourceFiles(texts={FILE: source}),
    }  # fmt: skip
    return Case(**{**given, **changed})
