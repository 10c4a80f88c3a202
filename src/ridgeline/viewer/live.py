"""What is new in a run under way: its steps and its telemetry, read from files that grow.

The program's process appends its steps once a second, and the watcher its telemetry. A reader keeps
how far it has read in each file, so that a look costs as much as there is news.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from ridgeline import units
from ridgeline.errors import RidgelineError
from ridgeline.records.run import Phase, Step, Telemetry
from ridgeline.records.run_directory import RunDirectory, open_plain_file
from ridgeline.viewer.library import Stage, stage_of

T = TypeVar("T")

WindowKind = Literal["settle", "light", "traced", "memory", "alone", ""]

FROM_THE_TAIL = -1
"""An offset that means: begin near the end of the file."""
TAIL_BYTES = 512 << 10
"""How far from the end of a file the first look begins: the last 1,500 steps, or four minutes of
telemetry."""
MAX_READ_BYTES = 4 << 20
"""Most that one look reads of a file. What is beyond it comes with the next look."""
TELEMETRY_INTERVAL_NS = 900_000_000
"""Ten samples a second are taken; one point a second is shown."""
RECENT_STEPS = 50
"""How many of the newest steps the main numbers are taken from."""


RECENT_BYTES = 64 << 10
"""The end of a file that holds them: a step takes 0.3 kB, and one with regions of its own 1 kB. A
sample of telemetry takes 0.2 kB, and one of eight GPUs and their workers 4 kB."""


class Offsets(Struct, frozen=True):
    """How far the files were read, in bytes."""

    steps: int = FROM_THE_TAIL
    telemetry: int = FROM_THE_TAIL


class GpuPoint(Struct, frozen=True, kw_only=True):
    index: int
    utilisation_percent: int | None = None
    memory_bytes: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None


class TelemetryPoint(Struct, frozen=True, kw_only=True):
    """The machine at one moment, and its processors since the moment before."""

    at_ns: int
    program_cores: float | None = None
    """How many processors the program's own process keeps busy."""
    worker_cores: float | None = None
    workers: int = 0
    host_bytes: int = 0
    """Resident memory of the program and its workers; pages that they share count in each."""
    gpus: tuple[GpuPoint, ...] = ()


class Recent(Struct, frozen=True, kw_only=True):
    """The newest steps in a few numbers."""

    last_step: int | None = None
    """The index of the newest step."""
    step_ms: float | None = None
    samples_s: float | None = None
    tokens_s: float | None = None
    phases: tuple[tuple[Phase, float], ...] = ()
    """Milliseconds of each phase in the mean detailed step, in the order of a step."""
    loss: float | None = None
    loss_broke: str = ""
    device_peak_bytes: int = 0


class News(Struct, frozen=True, kw_only=True):
    """What one look found."""

    stage: Stage
    window: WindowKind = ""
    """The window that the program is in; "" if it is not known yet. In "alone", steps are no longer
    recorded."""
    began_over: bool = False
    """Whether the steps read so far are void, because they turned out not to be steps."""
    ranks: int = 1
    """Ranks of the job. Steps and telemetry are those of rank 0."""
    elapsed_s: float | None = None
    """Time from the start of the run to the newest step or sample."""
    steps: tuple[Step, ...] = ()
    telemetry: tuple[TelemetryPoint, ...] = ()
    recent: Recent = Recent()
    machine: TelemetryPoint | None = None
    """The newest point, whether it is news or not."""
    offsets: Offsets


def look(run: RunDirectory, offsets: Offsets) -> News:
    """Return what was written to a run since the look that gave `offsets`."""
    stage = stage_of(run)
    began_ns, ranks = 0, 1
    window: WindowKind = ""
    with contextlib.suppress(RidgelineError):
        file = run.run()
        began_ns, ranks = file.began_ns, file.ranks
    with contextlib.suppress(RidgelineError):
        capture = run.capture()
        window = capture.windows[-1].kind if capture is not None and capture.windows else ""
    steps, steps_end, began_over = read_new(run.steps_file(), Step, offsets.steps)
    samples, samples_end, _ = read_new(run.telemetry_file(), Telemetry, offsets.telemetry)
    last_steps, _, _ = read_new(run.steps_file(), Step, FROM_THE_TAIL, RECENT_BYTES)
    last_samples, _, _ = read_new(run.telemetry_file(), Telemetry, FROM_THE_TAIL, RECENT_BYTES)
    machine = list(points(last_samples))
    newest_ns = max(
        [step.start_ns + step.dur_ns for step in last_steps[-1:]]
        + [sample.at_ns for sample in last_samples[-1:]],
        default=0,
    )
    return News(
        stage=stage, window=window, ranks=ranks, began_over=began_over, steps=tuple(steps),
        elapsed_s=(newest_ns - began_ns) / 1e9 if began_ns and newest_ns > began_ns else None,
        telemetry=tuple(points(samples)), recent=recent(last_steps),
        machine=machine[-1] if machine else None,
        offsets=Offsets(steps_end, samples_end),
    )  # fmt: skip


def read_new(
    path: Path, kind: type[T], offset: int, tail_bytes: int = TAIL_BYTES
) -> tuple[list[T], int, bool]:
    """Return the records in the complete lines of `path` from `offset` on, the new offset, and
    whether the file became shorter, so that it was read again from its beginning. Lines that cannot
    be decoded are skipped: the report names them."""
    try:
        with open_plain_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            is_shorter = offset > size
            start, skips_part = offset, False
            if is_shorter:
                start = 0
            elif offset < 0:
                start = max(size - tail_bytes, 0)
                skips_part = start > 0
            file.seek(start)
            data = file.read(MAX_READ_BYTES)
    except OSError:
        return [], offset, False
    end = data.rfind(b"\n") + 1
    if not end and len(data) == MAX_READ_BYTES:
        return [], start + len(data), is_shorter  # a line that is too long: nobody wrote a step
    lines = data[:end].split(b"\n")[1 if skips_part else 0 :]
    decoder = msgspec.json.Decoder(kind)
    records = []
    for line in lines:
        if line.strip():
            with contextlib.suppress(ValueError, RecursionError):
                records.append(decoder.decode(line))
    return records, start + end, is_shorter


def points(samples: Sequence[Telemetry]) -> Iterator[TelemetryPoint]:
    """Yield about one point for each second of samples, and one for the newest sample."""
    chosen: list[Telemetry] = []
    for sample in samples:
        if not chosen or sample.at_ns - chosen[-1].at_ns >= TELEMETRY_INTERVAL_NS:
            chosen.append(sample)
    if len(chosen) == 1 and len(samples) > 1:
        chosen.append(samples[-1])  # a look each second sees less than two whole seconds
    for before, sample in pairwise(chosen):
        yield _point(before, sample)
    if len(chosen) == 1:
        yield _point(None, chosen[0])


def _point(before: Telemetry | None, sample: Telemetry) -> TelemetryPoint:
    program = worker = None
    if before is not None and sample.at_ns > before.at_ns:
        seconds = (sample.at_ns - before.at_ns) / 1e9
        spent = {process.pid: process.cpu_s for process in before.processes}
        used = {True: 0.0, False: 0.0}
        for process in sample.processes:
            used[process.worker] += max(process.cpu_s - spent.get(process.pid, process.cpu_s), 0.0)
        program, worker = used[False] / seconds, used[True] / seconds
    has_own = any(device.ours for device in sample.devices)
    return TelemetryPoint(
        at_ns=sample.at_ns,
        program_cores=program,
        worker_cores=worker,
        workers=sum(process.worker for process in sample.processes),
        host_bytes=sum(process.rss_bytes for process in sample.processes),
        gpus=tuple(
            GpuPoint(
                index=device.index, utilisation_percent=device.utilisation_percent,
                memory_bytes=device.memory_used_bytes, power_w=device.power_w,
                temperature_c=device.temperature_c,
            )
            for device in sample.devices
            if device.ours or not has_own
        ),
    )  # fmt: skip


def recent(steps: Sequence[Step]) -> Recent:
    """Return the main numbers of the newest `RECENT_STEPS` steps. Steps that compile, and steps
    that our own work disturbed, are left out if there are others."""
    newest = steps[-RECENT_STEPS:]
    timed = [s for s in newest if s.window == "light" and not s.compile_ns] or newest
    if not timed:
        return Recent()
    durations = [(s.dur_ns if s.device_ns is None else s.device_ns) for s in timed]
    step_ns = median(durations)
    detailed = [s for s in timed if s.detailed and s.host]
    totals: dict[Phase, int] = {}
    for step in detailed:
        for phase, ns in (step.device or step.host).items():
            totals[phase] = totals.get(phase, 0) + ns
    losses = [s for s in newest if s.loss is not None or s.loss_broke]
    return Recent(
        last_step=newest[-1].index,
        step_ms=step_ns / 1e6,
        samples_s=_rate(detailed, lambda step: step.samples, step_ns),
        tokens_s=_rate(detailed, lambda step: step.tokens, step_ns),
        phases=tuple(
            (phase, totals[phase] / len(detailed) / 1e6)
            for phase in get_args(Phase)
            if totals.get(phase)
        ),
        loss=losses[-1].loss if losses else None,
        loss_broke=losses[-1].loss_broke if losses else "",
        device_peak_bytes=max((s.memory.peak_bytes for s in newest if s.memory), default=0),
    )  # fmt: skip


WINDOWS = {
    "settle": "warming up: these steps are not counted",
    "light": "timing steps",
    "traced": "tracing a few steps, which are slower",
    "memory": "recording allocations",
    "alone": "timing is over, and the program runs on by itself; --full times every step",
}


def is_charted(step: Step) -> bool:
    """Return whether a step has a place in a chart of step times. A warm-up step may take a hundred
    times as long, and would press the others into a line."""
    return step.window != "settle" and not step.compile_ns


def stage_sentence(news: News) -> str:
    """Return what is being done, for people."""
    if news.stage == "over":
        return "The run is over."
    if news.stage == "concluding":
        return "The program has ended, and its report is being made."
    whose = f", rank 0 of {news.ranks}" if news.ranks > 1 else ""
    return f"Running{whose}: {WINDOWS.get(news.window, 'no step has been seen yet')}."


def shown_figures(news: News) -> list[tuple[str, str]]:
    """Return the label and the text of each number that is known now."""
    recent = news.recent
    shown: list[tuple[str, str]] = []
    if recent.last_step is not None:
        shown.append(("step", f"{recent.last_step + 1:,}"))
    if recent.step_ms is not None:
        shown.append(("step time", units.seconds(recent.step_ms / 1e3)))
    if recent.tokens_s:
        shown.append(("tokens/s", units.count(recent.tokens_s)))
    elif recent.samples_s:
        shown.append(("samples/s", units.count(recent.samples_s)))
    if recent.loss_broke or recent.loss is not None:
        shown.append(("loss", recent.loss_broke or units.significant(recent.loss or 0.0, 4)))
    if recent.device_peak_bytes:
        shown.append(("peak memory of the GPU", units.bytes_(recent.device_peak_bytes)))
    if news.machine is not None:
        shown += _machine(news.machine)
    if news.elapsed_s is not None:
        shown.append(("running for", units.seconds(round(news.elapsed_s))))
    return shown


def _machine(point: TelemetryPoint) -> Iterator[tuple[str, str]]:
    if point.program_cores is not None:
        workers = f" + {units.significant(point.worker_cores or 0.0, 2)} in workers"
        cores = units.significant(point.program_cores, 2)
        yield "processors in use", cores + (workers if point.workers else "")
    if point.host_bytes:
        yield "memory of the host", units.bytes_(point.host_bytes)
    for gpu in point.gpus:
        parts = (
            None if gpu.utilisation_percent is None else f"{gpu.utilisation_percent} %",
            None if gpu.memory_bytes is None else units.bytes_(gpu.memory_bytes),
            None if gpu.power_w is None else f"{gpu.power_w:.0f} W",
            None if gpu.temperature_c is None else f"{gpu.temperature_c} °C",
        )
        yield f"GPU {gpu.index}", " · ".join(part for part in parts if part)


def _rate(steps: Sequence[Step], amount: Callable[[Step], int], step_ns: float) -> float | None:
    known = [amount(step) for step in steps if amount(step)]
    return sum(known) / len(known) / step_ns * 1e9 if known and step_ns else None
