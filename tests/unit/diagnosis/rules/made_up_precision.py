"""Cases for the rules of precision: a step of 10 ms on a GPU, its products given by the test."""

from typing import Any

from ridgeline.diagnosis.case import Case
from ridgeline.machine.datasheet import match
from ridgeline.records.machine import Ceiling, Device
from ridgeline.records.run import Capture, DeviceSeen, Flags, ModuleSeen
from ridgeline.records.run_summary import StepTimes
from ridgeline.records.sites import OpSite, SiteKernel, Sites
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles

MS = 1e6
FILE = "train.py"
SOURCE = """\
import torch

def main():
    model = make()
    for batch in loader:
        loss = model(batch)
        loss.backward()
"""
HERE = Place(file=FILE, line=3, function="main")
TYPES = {"float32": "float", "bfloat16": "c10::BFloat16", "float16": "c10::Half"}


def gpu(name: str = "NVIDIA H200", architecture: str = "sm_90") -> Device:
    row = match(name)
    assert row is not None
    return Device(kind="cuda", index=0, name=name, memory_bytes=0, architecture=architecture,
                  ceilings=row.ceilings())  # fmt: skip


def cpu(bfloat16: float | None = None, native: bool = True) -> Device:
    def peak(dtype: str, value: float, own: bool = True) -> Ceiling:
        return Ceiling(quantity="matmul", value=value, unit="FLOP/s", source="measured",
                       dtype=dtype, native=own)  # fmt: skip

    memory = Ceiling(quantity="copy", value=20e9, unit="B/s", source="measured")
    other = () if bfloat16 is None else (peak("bfloat16", bfloat16, native),)
    return Device(kind="cpu", index=0, name="a processor", memory_bytes=0, architecture="avx512",
                  ceilings=(peak("float32", 250e9), *other, memory))  # fmt: skip


def product(
    ms: float,
    kernel: str = "",
    dtype: str = "float32",
    sizes: tuple[int, int, int] = (4096, 4096, 4096),
    **changed: Any,
) -> OpSite:
    """An `aten::mm` of m × k by k × n."""
    m, k, n = sizes
    item = 4 if dtype == "float32" else 2
    given = {
        "op": "aten::mm", "dims": ([m, k], [k, n]), "types": (TYPES[dtype],) * 2,
        "strides": ([k, 1], [n, 1]), "phase": "forward", "place": HERE, "calls": 1.0,
        "device_ns": ms * MS if kernel else 0.0, "host_ns": 0.01 * MS if kernel else ms * MS,
        "exposed_ns": ms * MS, "flops": 2.0 * m * k * n, "bytes": float(item * (m*k + k*n + m*n)),
        "dtype": dtype,
        "kernels": (SiteKernel(name=kernel, count=1, ns=ms * MS),) if kernel else (),
    }  # fmt: skip
    return OpSite(**{**given, **changed})


def case(
    *sites: OpSite,
    device: Device | None = None,
    flags: Flags | None = None,
    source: str = SOURCE,
    step_ms: float = 10.0,
    **changed: Any,
) -> Case:
    """Of a run where there are flags, else of a trace alone."""
    on_gpu = device is None or device.kind == "cuda"
    seen = None
    if flags is not None:
        model = ModuleSeen(name="Net", calls=40, parameters=1000, place=f"{FILE}:6")
        seen = Capture(
            flags=flags, modules=(model,), device=DeviceSeen(kind="cuda" if on_gpu else "cpu")
        )
    times = StepTimes(mean_ms=step_ms, median_ms=step_ms) if seen is not None else StepTimes()
    work = StepWork(
        device="cuda" if on_gpu else "cpu", steps=3, step_ms=step_ms, flops=0, all_flops=0,
        skipped_flops=0, bytes=0, coverage=1, operator_ms=0.95 * step_ms, op_share=0.95,
    )  # fmt: skip
    given = {
        "kind": "trace" if seen is None else "run", "on_gpu": on_gpu, "capture": seen,
        "times": times, "work": work, "device": device or gpu(),
        "sites": Sites(ops=sites, stacks=True, shapes=True, steps=3),
        "sources": SourceFiles(texts={FILE: source}),
    }  # fmt: skip
    return Case(**{**given, **changed})
