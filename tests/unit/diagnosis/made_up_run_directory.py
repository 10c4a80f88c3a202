"""Run directories made by hand, as a program and its watcher would leave them."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ridgeline.records.run import (
    Capture,
    DeviceSample,
    DeviceSeen,
    LoaderSeen,
    ProcessSample,
    RunFile,
    Settings,
    Status,
    Step,
    Target,
    Telemetry,
    Window,
)
from ridgeline.records.run_directory import RunDirectory
from tests.unit.diagnosis.made_up_steps import MS, noisy, step
from tests.unit.trace.traces_made import Made

GIB = 2**30


def steps(device: bool = True) -> list[Step]:
    """3 to settle, 10 light, 3 traced, 30 light."""
    return [
        *[step(i, ms=900, window="settle", device=device) for i in range(3)],
        *noisy(10, first=3, device=device),
        *[step(i, ms=120, window="traced", device=device) for i in range(13, 16)],
        *noisy(30, first=16, seed=2, device=device),
    ]


def capture(**changed: object) -> Capture:
    made = Capture(
        stepping="optimizer", steps=46, ended="finished",
        windows=(Window(kind="traced", first_step=13, steps=3),),
        device=DeviceSeen(kind="cuda", name="NVIDIA H200", memory_bytes=140 * GIB, cores=132),
        loaders=(LoaderSeen(batches=46, place="data.py:41"),),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changed)


def run_file(status: Status = "finished", **changed: object) -> RunFile:
    made = RunFile(
        name="1115-0102-train", status=status,
        target=Target(kind="script", name="train.py", arguments=("-e", "1")),
        settings=Settings(price_per_hour=3.6, carbon_g_per_kwh=400.0),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changed)


def telemetry(count: int = 50) -> list[Telemetry]:
    """Ten a second: a GPU at 300 W, a program on one core."""
    return [
        Telemetry(
            at_ns=i * 100 * MS,
            processes=(ProcessSample(pid=7, cpu_s=i * 0.1, rss_bytes=2 * GIB),),
            devices=(
                DeviceSample(index=0, utilisation_percent=80, power_w=300.0, energy_j=30.0 * i),
            ),
        )
        for i in range(count)
    ]


def directory(
    folder: Path,
    *,
    run: RunFile | None = None,
    captured: Capture | None = None,
    stepped: Sequence[Step] = (),
    watched: Sequence[Telemetry] = (),
) -> RunDirectory:
    path = folder / "1115-0102-train"
    path.mkdir()
    made = RunDirectory(path)
    if run is not None:
        made.run_file.write_bytes(msgspec.json.encode(run))
    if captured is not None:
        made.capture_file(captured.rank).write_bytes(msgspec.json.encode(captured))
    lines(made.steps_file(), stepped)
    lines(made.telemetry_file(), watched)
    return made


def lines(path: Path, records: Sequence[Struct]) -> None:
    if records:
        path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def trace(made: RunDirectory) -> None:
    """Three steps of 120 ms: a matrix product of 80 ms of bf16 on the GPU, 20 in the loader."""
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]],
              "Input type": ["c10::BFloat16", "c10::BFloat16"]}  # fmt: skip
    events = Made()
    for i in range(3):
        at = 120_000.0 * i
        events.span(f"ProfilerStep#{i}", at, 120_000)
        events.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 30_000)
        events.op("aten::mm", at + 31_000, 60, **shapes)
        events.call("cudaLaunchKernel", at + 31_010, 5, i + 1)
        events.kernel("sm90_xmma_gemm_bf16bf16_tensorop", at + 31_020, 80_000, i + 1)
    events.write(made.path, "trace-rank0.json.gz")
