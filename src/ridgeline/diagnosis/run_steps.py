"""The steps of a run directory, each with the telemetry that was taken while it ran."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import fmean

from ridgeline.diagnosis.machine_use import at_work
from ridgeline.diagnosis.recorded_run import Attempts, ordered_steps, read_run_file, readable_lines
from ridgeline.records.run import DeviceSample, Step, Telemetry
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_steps import MachineReading, RankSteps, RunSteps


def run_steps(directory: RunDirectory, attempts: Attempts) -> RunSteps:
    """Return the steps of every rank. What cannot be read is left out and named in `attempts`."""
    run = read_run_file(directory, attempts)
    began_s = attempts.part("the time of the beginning", lambda: _seconds(run.began_at))
    ranks = directory.ranks() or (0,)
    return RunSteps(
        name=directory.name,
        began_s=began_s or 0.0,
        began_ns=run.began_ns,
        ranks=tuple(_rank_steps(directory, rank, attempts) for rank in ranks),
    )


def _seconds(iso_time: str) -> float:
    return datetime.fromisoformat(iso_time).timestamp() if iso_time else 0.0


def _rank_steps(directory: RunDirectory, rank: int, attempts: Attempts) -> RankSteps:
    steps = ordered_steps(readable_lines("steps", directory.steps, rank, attempts))
    telemetry = readable_lines("telemetry", directory.telemetry, rank, attempts)
    capture = attempts.part("the capture", lambda: directory.capture(rank))
    on_gpu = capture.device.kind == "cuda" if capture is not None else None
    read = attempts.part("the telemetry", lambda: readings(steps, telemetry, on_gpu))
    return RankSteps(rank=rank, steps=steps, readings=read or (None,) * len(steps))


def readings(
    steps: Sequence[Step], telemetry: Sequence[Telemetry], on_gpu: bool | None = None
) -> tuple[MachineReading | None, ...]:
    """Return the mean reading within each step; None for a step without a sample. `on_gpu` says
    whether the program is known to use a GPU."""
    if not steps or not telemetry:
        return (None,) * len(steps)
    samples = sorted(telemetry, key=lambda sample: sample.at_ns)
    end_ns = max(step.start_ns + step.dur_ns for step in steps)
    gpus = frozenset(at_work(samples, steps[0].start_ns, end_ns, on_gpu))
    taken = [_reading(None, samples[0], gpus)]
    taken += [_reading(before, sample, gpus) for before, sample in pairwise(samples)]
    found, i = [], 0
    for step in steps:
        while i < len(samples) and samples[i].at_ns < step.start_ns:
            i += 1
        first = i
        while i < len(samples) and samples[i].at_ns < step.start_ns + step.dur_ns:
            i += 1
        found.append(_mean_reading(taken[first:i]))
    return tuple(found)


def _reading(before: Telemetry | None, sample: Telemetry, gpus: frozenset[int]) -> MachineReading:
    devices = [device for device in sample.devices if device.index in gpus]

    def known(figure: Callable[[DeviceSample], float | None]) -> list[float]:
        return [value for device in devices if (value := figure(device)) is not None]

    used, clocks = known(lambda d: d.utilisation_percent), known(lambda d: d.sm_mhz)
    memory, power = known(lambda d: d.memory_used_bytes), known(lambda d: d.power_w)
    resident = sum(process.rss_bytes for process in sample.processes)
    available = sample.host_memory_available_bytes
    return MachineReading(
        program_cores=_cores(before, sample) if before is not None else None,
        host_cpu_percent=sample.host_cpu_percent,
        resident_bytes=resident or None,
        available_bytes=available,
        gpu_percent=fmean(used) if used else None,
        gpu_memory_bytes=sum(memory) if memory else None,
        gpu_mhz=fmean(clocks) if clocks else None,
        gpu_power_w=sum(power) if power else None,
        gpu_temperature_c=max(known(lambda d: d.temperature_c), default=None),
    )


def _cores(before: Telemetry, sample: Telemetry) -> float | None:
    """Return how many processors the processes that are in both samples used in between."""
    seconds = (sample.at_ns - before.at_ns) / 1e9
    earlier = {process.pid: process.cpu_s for process in before.processes}
    spent = [p.cpu_s - earlier[p.pid] for p in sample.processes if p.pid in earlier]
    if seconds <= 0 or not spent or min(spent) < 0:  # a process id was used again
        return None
    return sum(spent) / seconds


def _mean_reading(taken: Sequence[MachineReading]) -> MachineReading | None:
    if not taken:
        return None
    names = MachineReading.__struct_fields__
    return MachineReading(
        **{name: _mean(getattr(reading, name) for reading in taken) for name in names}
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
