"""The telemetry of a span in a few numbers."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from ridgeline.diagnosis.counter import growth
from ridgeline.diagnosis.gpus_at_work import at_work, inside, readings
from ridgeline.records.run import DeviceSample, Telemetry
from ridgeline.records.run_summary import Telemetered

# A reason seen in fewer looks than this did not make the step what it is.
_OFTEN = 0.1
# A process that used less of a processor did no work: a resource tracker, an idle compile pool.
_WORKS = 0.01
_LOOK_NS = 100_000_000
# The host is looked at once a second, and what was read stands in the samples until the next look.
_HOST_LOOK_NS = 1_000_000_000


def telemetered(
    telemetry: Sequence[Telemetry],
    start_ns: int,
    end_ns: int,
    *,
    on_gpu: bool | None = None,
    cores: int = 0,
) -> Telemetered:
    """GPUs: utilisation and clocks are means over all at work, power their sum, temperature the
    highest. `on_gpu`: whether the program is known to use one. `cores`: all of the machine's, 0
    where they are not known."""
    held = inside(telemetry, start_ns, end_ns)
    working = at_work(telemetry, start_ns, end_ns, on_gpu)
    seen = readings(held)
    gpus = [[device for _, device in seen[index]] for index in working]
    looks = [device for gpu in gpus for device in gpu]
    powers = [p for gpu in gpus if (p := _mean(d.power_w for d in gpu)) is not None]
    used = _mean(_mean(d.utilisation_percent for d in gpu) for gpu in gpus)
    workers = _worker_seconds(telemetry, start_ns, end_ns)
    seconds = max((end_ns - start_ns) / 1e9, 1e-9)
    return Telemetered(
        gpu_utilisation=used / 100 if used is not None else None,
        sm_mhz=_mean(_mean(d.sm_mhz for d in gpu) for gpu in gpus),
        sm_max_mhz=_highest(looks, lambda d: d.sm_max_mhz),
        power_w=sum(powers) if powers else None,
        temperature_c=_highest(looks, lambda d: d.temperature_c),
        throttle=_reasons(looks),
        other_processes=max((d.others for d in looks), default=0),
        program_cores=_program_cores(telemetry, start_ns, end_ns),
        worker_cores=sum(workers) / seconds if held else None,
        workers=sum(used_s / seconds >= _WORKS for used_s in workers),
        other_cores=_other_cores(telemetry, start_ns, end_ns, cores) if cores else None,
        cores=cores,
        samples=len(held),
    )


def _program_cores(telemetry: Sequence[Telemetry], start_ns: int, end_ns: int) -> float | None:
    spent = [
        grown
        for points in _cpu_seconds(telemetry, worker=False).values()
        if (grown := growth(points, start_ns, end_ns)) is not None
    ]
    return sum(spent) / ((end_ns - start_ns) / 1e9) if spent else None


def _other_cores(
    telemetry: Sequence[Telemetry], start_ns: int, end_ns: int, cores: int
) -> float | None:
    """What the host used, less the program and its workers over the same second: a program that
    compiled on all cores just before the span is not another one."""
    others, seconds = 0.0, 0.0
    for first, last, percent in _host_looks(telemetry):
        if last <= start_ns or first >= end_ns:
            continue
        program = _program_cores(telemetry, first, last)
        if program is None:
            continue
        span = (last - first) / 1e9
        workers = sum(_worker_seconds(telemetry, first, last)) / span
        others += span * (cores * percent / 100 - program - workers)
        seconds += span
    return max(others / seconds, 0.0) if seconds else None


def _host_looks(telemetry: Sequence[Telemetry]) -> list[tuple[int, int, float]]:
    """(from, to, percent) of each look at the host, found again as the sampler times them."""
    ordered = sorted(telemetry, key=lambda sample: sample.at_ns)
    looks, before = [], ordered[0].at_ns if ordered else 0
    for sample in ordered:
        if sample.at_ns - before >= _HOST_LOOK_NS:
            if sample.host_cpu_percent is not None:
                looks.append((before, sample.at_ns, sample.host_cpu_percent))
            before = sample.at_ns
    return looks


def _worker_seconds(telemetry: Sequence[Telemetry], start_ns: int, end_ns: int) -> list[float]:
    """CPU seconds of each worker within the span, of which it may have lived only a part."""
    began = min((sample.at_ns for sample in telemetry), default=0)
    spent = []
    for points in _cpu_seconds(telemetry, worker=True).values():
        born = points[0][0]
        # One that was not there at the first look began with nothing, no longer ago than a look.
        if start_ns < born <= end_ns and born > began:
            points = [(max(start_ns, born - _LOOK_NS), 0.0), *points]
        first, last = max(points[0][0], start_ns), min(points[-1][0], end_ns)
        grown = growth(points, first, last)
        spent.append(grown if grown is not None else 0.0)
    return spent


def _cpu_seconds(
    telemetry: Sequence[Telemetry], *, worker: bool
) -> dict[int, list[tuple[int, float]]]:
    """By process, in the order of time."""
    found: dict[int, list[tuple[int, float]]] = {}
    for sample in sorted(telemetry, key=lambda sample: sample.at_ns):
        for process in sample.processes:
            if process.worker == worker:
                found.setdefault(process.pid, []).append((sample.at_ns, process.cpu_s))
    return found


def _reasons(looks: Sequence[DeviceSample]) -> tuple[str, ...]:
    """Most frequent first."""
    seen = Counter(reason for device in looks for reason in device.throttle)
    return tuple(reason for reason, times in seen.most_common() if times >= _OFTEN * len(looks))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _highest(
    looks: Sequence[DeviceSample], figure: Callable[[DeviceSample], int | None]
) -> float | None:
    known = [value for device in looks if (value := figure(device)) is not None]
    return float(max(known)) if known else None
