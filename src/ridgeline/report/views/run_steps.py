"""The steps of a run as raw values: a table for spreadsheets, and scalars for TensorBoard."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_args

from ridgeline.records.run import Phase, Step, StepMemory
from ridgeline.records.run_steps import MachineReading, RankSteps, RunSteps
from ridgeline.report.document import Figures, Scalar, Scalars

MAX_REGIONS = 50
"""A program that makes up names of regions as it goes could name a new one in every step."""
_NO_MEMORY = StepMemory()
_NO_READING = MachineReading()


class _Column(NamedTuple):
    name: str
    scalar: str
    """Its name among the scalars, which begins with a group; "" for a column that is none."""
    value: Callable[[Step, MachineReading], Any]
    """Returns None where the value is not known."""


def run_figures(run: RunSteps) -> Figures:
    """Return one row for each recorded step. A job of several ranks has a column for the rank."""
    columns = _columns(run)
    several = len(run.ranks) > 1
    rows = [
        [*([ranked.rank] if several else []), *(c.value(step, reading) for c in columns)]
        for ranked in run.ranks
        for step, reading in _pairs(ranked)
    ]
    names = (c.name for c in columns)
    return Figures((*(["rank"] if several else []), *names), rows)


def run_scalars(run: RunSteps) -> tuple[Scalars, ...]:
    """Return the scalars of each rank. Each point has the time at which its step ended."""
    columns = [column for column in _columns(run) if column.scalar]
    several = len(run.ranks) > 1
    found = []
    for ranked in run.ranks:
        times_s = [run.began_s + (s.start_ns + s.dur_ns - run.began_ns) / 1e9 for s in ranked.steps]
        steps = [step.index for step in ranked.steps]
        pairs = list(_pairs(ranked))
        scalars = (Scalar(c.scalar, [c.value(*pair) for pair in pairs]) for c in columns)
        kept = tuple(s for s in scalars if any(value is not None for value in s.values))
        name = f"{run.name}/rank{ranked.rank}" if several else run.name
        found.append(Scalars(name=name, times_s=times_s, steps=steps, scalars=kept))
    return tuple(found)


def _pairs(ranked: RankSteps) -> Iterator[tuple[Step, MachineReading]]:
    for step, reading in zip(ranked.steps, ranked.readings, strict=True):
        yield step, reading or _NO_READING


def _columns(run: RunSteps) -> list[_Column]:
    """Return the columns. All runs have the same ones, but for the regions of their programs and
    the times on a device that the program did not use."""
    steps = [step for ranked in run.ranks for step in ranked.steps]
    on_device = any(step.device_ns is not None for step in steps)
    regions = list(dict.fromkeys(name for step in steps for name in step.regions))[:MAX_REGIONS]
    return [
        _Column("step", "", lambda step, _: step.index),
        _Column("began_s", "", lambda step, _: (step.start_ns - run.began_ns) / 1e9),
        _Column("window", "", lambda step, _: step.window),
        *_TIMES,
        *(_phase_column("host", phase) for phase in get_args(Phase)),
        *(_DEVICE_TIMES if on_device else ()),
        *(_phase_column("device", phase) for phase in get_args(Phase) if on_device),
        *(_region_column(name) for name in regions),
        *_WORK,
        *_MEMORY,
        *_MACHINE,
    ]


def _phase_column(clock: str, phase: Phase) -> _Column:
    """Return the time of a phase. In a step that was recorded in detail, a phase without a time did
    not happen and took 0 ms; of other steps the phases are not known."""

    def value(step: Step, _: MachineReading) -> float | None:
        phases = step.device if clock == "device" else step.host
        return phases.get(phase, 0) / 1e6 if phases else None

    prefix = "device_" if clock == "device" else ""
    return _Column(f"{prefix}{phase}_ms", f"{prefix}phases_ms/{phase}", value)


def _region_column(name: str) -> _Column:
    return _Column(
        f"region {name} ms",
        f"regions_ms/{name}",
        lambda step, _: step.regions[name] / 1e6 if name in step.regions else None,
    )


def _loss(step: Step) -> Any:
    """Return the loss; the word nan or inf for one that is not finite."""
    return step.loss if step.loss is not None else step.loss_broke or None


def _rate(step: Step, count: int) -> float | None:
    return count / step.dur_ns * 1e9 if count and step.dur_ns > 0 else None


def _memory(step: Step) -> StepMemory:
    return step.memory or _NO_MEMORY


def _whole(mean: float | None) -> int | None:
    return None if mean is None else round(mean)


_TIMES = (
    _Column("ms", "step/ms", lambda step, _: step.dur_ns / 1e6),
    _Column("compile_ms", "step/compile_ms", lambda step, _: step.compile_ns / 1e6 or None),
)
_DEVICE_TIMES = (
    _Column(
        "device_ms",
        "step/device_ms",
        lambda step, _: None if step.device_ns is None else step.device_ns / 1e6,
    ),
)
_WORK = (
    _Column("loss", "loss", lambda step, _: _loss(step)),
    _Column("samples", "", lambda step, _: step.samples or None),
    _Column("tokens", "", lambda step, _: step.tokens or None),
    _Column("samples_s", "throughput/samples_s", lambda step, _: _rate(step, step.samples)),
    _Column("tokens_s", "throughput/tokens_s", lambda step, _: _rate(step, step.tokens)),
    _Column("forwards", "", lambda step, _: step.forwards if step.detailed else None),
    _Column("backwards", "", lambda step, _: step.backwards if step.detailed else None),
    _Column("optimizer_steps", "", lambda step, _: step.optimizer_steps if step.detailed else None),
    _Column("skipped", "", lambda step, _: int(step.skipped)),
)
_MEMORY = (
    _Column(
        "allocated_bytes",
        "memory_bytes/allocated",
        lambda step, _: _memory(step).allocated_bytes if _memory(step).peak_bytes else None,
    ),
    _Column("peak_bytes", "memory_bytes/peak", lambda step, _: _memory(step).peak_bytes or None),
    _Column(
        "reserved_bytes",
        "memory_bytes/reserved",
        lambda step, _: _memory(step).reserved_bytes or None,
    ),
    _Column(
        "host_bytes",
        "memory_bytes/host_allocated",
        lambda step, _: _memory(step).host_bytes or None,
    ),
    _Column("resident_bytes", "memory_bytes/resident", lambda _, seen: _whole(seen.resident_bytes)),
    _Column(
        "available_bytes",
        "memory_bytes/host_available",
        lambda _, seen: _whole(seen.available_bytes),
    ),
    _Column("gpu_memory_bytes", "memory_bytes/gpu", lambda _, seen: _whole(seen.gpu_memory_bytes)),
)
_MACHINE = (
    _Column("program_cores", "machine/program_cores", lambda _, seen: seen.program_cores),
    _Column("host_cpu_percent", "machine/host_cpu_percent", lambda _, seen: seen.host_cpu_percent),
    _Column("gpu_percent", "machine/gpu_percent", lambda _, seen: seen.gpu_percent),
    _Column("gpu_mhz", "machine/gpu_mhz", lambda _, seen: seen.gpu_mhz),
    _Column("gpu_power_w", "machine/gpu_power_w", lambda _, seen: seen.gpu_power_w),
    _Column(
        "gpu_temperature_c", "machine/gpu_temperature_c", lambda _, seen: seen.gpu_temperature_c
    ),
)
