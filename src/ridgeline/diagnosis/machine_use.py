"""Works out what the program used of its machine over a span: GPUs, processors, energy.

Energy is from the GPUs' own counters if they have them, else from their power summed over time,
else from the processor's counter, which leaves out memory, fans and losses. It is never the
wall's."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from ridgeline.diagnosis.case import Case
from ridgeline.records.run import DeviceSample, Telemetry
from ridgeline.records.run_summary import Energy, Telemetered

NEAR_NS = 2_000_000_000
"""A sample this far outside the span still says something about its end: samples come ten times a
second, and once a second in a long run."""
MIN_COVERED_SHARE = 0.5
"""Samples must cover this share of a span."""
MIN_THROTTLED_SHARE = 0.1
"""A reason for low clocks seen in fewer samples did not make the step what it is."""
MIN_WORKER_CORES = 0.01
"""A process that used less of a processor did no work: a resource tracker, an idle compile pool."""
SAMPLE_NS = 100_000_000
HOST_SAMPLE_NS = 1_000_000_000
"""The host's use is read once a second, and stands in the samples until it is read again."""
COUNTER = "GPU energy counter"
POWER = "GPU power, summed"
PACKAGE = "processor energy counter (RAPL)"
_JOULES_PER_KWH = 3.6e6
_MILLION = 1e6

Points = Sequence[tuple[int, float]]
"""(time, value), in the order of time."""
Readings = dict[int, list[tuple[int, DeviceSample]]]
"""The samples of each device, in the order of time."""


# ---------------------------------------------------------------------------------- counters


def growth(points: Points, start_ns: int, end_ns: int) -> float | None:
    """Return how much a counter grew in a span, linear between samples. Return None if samples
    cover less than half the span, or if the counter was reset. A part that is not covered grew as
    the rest did."""
    near = _near(points, start_ns, end_ns)
    covered = _covered(near, start_ns, end_ns)
    # Two samplers of one counter may read it in the other order than their clocks say, by a hair;
    # a reset starts near nothing.
    if covered is None or any(b < a / 2 for (_, a), (_, b) in pairwise(near)):
        return None
    first, last = covered
    grown = (_value_at(near, last) - _value_at(near, first)) * (end_ns - start_ns) / (last - first)
    return grown if grown >= 0 else None


def amount(points: Points, start_ns: int, end_ns: int) -> float | None:
    """Return what a rate per second amounted to in a span, summed by trapezes; None as `growth`."""
    near = _near(points, start_ns, end_ns)
    covered = _covered(near, start_ns, end_ns)
    if covered is None:
        return None
    first, last = covered
    inner = [(at, value) for at, value in near if first < at < last]
    path = [(first, _value_at(near, first)), *inner, (last, _value_at(near, last))]
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(path))
    return area / 1e9 * (end_ns - start_ns) / (last - first)


def _near(points: Points, start_ns: int, end_ns: int) -> list[tuple[int, float]]:
    return [(at, v) for at, v in points if start_ns - NEAR_NS <= at <= end_ns + NEAR_NS]


def _covered(points: Points, start_ns: int, end_ns: int) -> tuple[int, int] | None:
    if len(points) < 2 or end_ns <= start_ns:
        return None
    first, last = max(points[0][0], start_ns), min(points[-1][0], end_ns)
    return (first, last) if last - first >= MIN_COVERED_SHARE * (end_ns - start_ns) else None


def _value_at(points: Points, at_ns: int) -> float:
    """Return the value at a moment that the samples enclose."""
    after = bisect_left(points, at_ns, key=lambda point: point[0])
    if points[after][0] == at_ns:
        return points[after][1]
    (t0, v0), (t1, v1) = points[after - 1], points[after]
    return v0 + (v1 - v0) * (at_ns - t0) / (t1 - t0)


# -------------------------------------------------------------------------------------- GPUs


def inside(telemetry: Sequence[Telemetry], start_ns: int, end_ns: int) -> list[Telemetry]:
    """Return the samples within the span, by time. Return the nearest one if the span is too short
    to hold any."""
    ordered = sorted(telemetry, key=lambda sample: sample.at_ns)
    held = [sample for sample in ordered if start_ns <= sample.at_ns <= end_ns]
    if held:
        return held
    middle = (start_ns + end_ns) // 2
    nearest = min(ordered, key=lambda sample: abs(sample.at_ns - middle), default=None)
    return [nearest] if nearest and abs(nearest.at_ns - middle) <= NEAR_NS else []


def readings(telemetry: Sequence[Telemetry]) -> Readings:
    """Return the samples of every device. In the telemetry of several ranks, put together, each
    device is one."""
    found: Readings = {}
    for sample in sorted(telemetry, key=lambda sample: sample.at_ns):
        for device in sample.devices:
            found.setdefault(device.index, []).append((sample.at_ns, device))
    return found


def at_work(
    telemetry: Sequence[Telemetry], start_ns: int, end_ns: int, on_gpu: bool | None = None
) -> tuple[int, ...]:
    """Return the devices that the program was seen on, else those that did anything. In a container
    no process id can be matched, and telemetry has every GPU that was visible.

    `on_gpu` says whether the program is known to use a GPU. If so and all were idle (a starved
    program may show 0 % for seconds), return the one with most memory in use; if not, return none.
    """
    if on_gpu is False:
        return ()
    seen = readings(inside(telemetry, start_ns, end_ns))
    ours = [i for i, samples in seen.items() if any(d.ours for _, d in samples)]
    busy = [i for i, samples in seen.items() if any(_busy(d) for _, d in samples)]
    if on_gpu and seen and not ours and not busy:
        busy = [max(seen, key=lambda i: max(d.memory_used_bytes or 0 for _, d in seen[i]))]
    return tuple(sorted(ours or busy))


def _busy(device: DeviceSample) -> bool:
    """A divided GPU does not tell its utilisation: it may have worked."""
    return device.utilisation_percent is None or device.utilisation_percent > 0


def telemetered(
    telemetry: Sequence[Telemetry],
    start_ns: int,
    end_ns: int,
    *,
    on_gpu: bool | None = None,
    cores: int = 0,
) -> Telemetered:
    """Return the telemetry of a span in a few numbers. Utilisation and clocks are means over all
    GPUs at work, power is their sum, temperature the highest. `on_gpu` says whether the program is
    known to use a GPU; `cores` is how many the machine has, 0 if that is not known."""
    held = inside(telemetry, start_ns, end_ns)
    seen = readings(held)
    gpus = [
        [device for _, device in seen[index]]
        for index in at_work(telemetry, start_ns, end_ns, on_gpu)
    ]
    samples = [device for gpu in gpus for device in gpu]
    powers = [p for gpu in gpus if (p := _mean(d.power_w for d in gpu)) is not None]
    used = _mean(_mean(d.utilisation_percent for d in gpu) for gpu in gpus)
    throttled = Counter(reason for device in samples for reason in device.throttle)
    workers = _worker_seconds(telemetry, start_ns, end_ns)
    seconds = max((end_ns - start_ns) / 1e9, 1e-9)
    return Telemetered(
        gpu_utilisation=used / 100 if used is not None else None,
        sm_mhz=_mean(_mean(d.sm_mhz for d in gpu) for gpu in gpus),
        sm_max_mhz=_highest(samples, lambda d: d.sm_max_mhz),
        power_w=sum(powers) if powers else None,
        temperature_c=_highest(samples, lambda d: d.temperature_c),
        throttle=tuple(
            reason
            for reason, times in throttled.most_common()
            if times >= MIN_THROTTLED_SHARE * len(samples)
        ),
        other_processes=max((d.others for d in samples), default=0),
        program_cores=_program_cores(telemetry, start_ns, end_ns),
        worker_cores=sum(workers) / seconds if held else None,
        workers=sum(used_s / seconds >= MIN_WORKER_CORES for used_s in workers),
        other_cores=_other_cores(telemetry, start_ns, end_ns, cores) if cores else None,
        cores=cores,
        samples=len(held),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _highest(
    samples: Sequence[DeviceSample], figure: Callable[[DeviceSample], int | None]
) -> float | None:
    known = [value for device in samples if (value := figure(device)) is not None]
    return float(max(known)) if known else None


# -------------------------------------------------------------------------------- processors


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
    """Return what the host used, less the program and its workers over the same second: a program
    that compiled on all cores just before the span is not another one."""
    others, seconds = 0.0, 0.0
    ordered = sorted(telemetry, key=lambda sample: sample.at_ns)
    first = ordered[0].at_ns if ordered else 0
    for sample in ordered:  # find the moments again at which the sampler has read the host's use
        last = sample.at_ns
        if last - first < HOST_SAMPLE_NS:
            continue
        begin, first = first, last
        if sample.host_cpu_percent is None or last <= start_ns or begin >= end_ns:
            continue
        program = _program_cores(telemetry, begin, last)
        if program is None:
            continue
        span = (last - begin) / 1e9
        workers = sum(_worker_seconds(telemetry, begin, last)) / span
        others += span * (cores * sample.host_cpu_percent / 100 - program - workers)
        seconds += span
    return max(others / seconds, 0.0) if seconds else None


def _worker_seconds(telemetry: Sequence[Telemetry], start_ns: int, end_ns: int) -> list[float]:
    """Return the CPU seconds of each worker within the span, of which it may have lived only a
    part."""
    began = min((sample.at_ns for sample in telemetry), default=0)
    spent = []
    for points in _cpu_seconds(telemetry, worker=True).values():
        born = points[0][0]
        # A worker that the first sample has not began with nothing, no longer ago than a sample.
        if start_ns < born <= end_ns and born > began:
            points = [(max(start_ns, born - SAMPLE_NS), 0.0), *points]
        first, last = max(points[0][0], start_ns), min(points[-1][0], end_ns)
        spent.append(growth(points, first, last) or 0.0)
    return spent


def _cpu_seconds(
    telemetry: Sequence[Telemetry], *, worker: bool
) -> dict[int, list[tuple[int, float]]]:
    """Return the counter of each process, in the order of time."""
    found: dict[int, list[tuple[int, float]]] = {}
    for sample in sorted(telemetry, key=lambda sample: sample.at_ns):
        for process in sample.processes:
            if process.worker == worker:
                found.setdefault(process.pid, []).append((sample.at_ns, process.cpu_s))
    return found


# ------------------------------------------------------------------------------------ energy


def energy(
    telemetry: Sequence[Telemetry],
    start_ns: int,
    end_ns: int,
    steps: int,
    samples: float,
    price_per_hour: float | None = None,
    carbon_g_per_kwh: float | None = None,
    *,
    on_gpu: bool | None = None,
    samples_s: float | None = None,
) -> Energy:
    """Return the energy over a span that holds `steps` steps and `samples` samples, of all GPUs
    together, and what a million samples cost in money and CO2.

    The telemetry of several ranks may be put together: a GPU that two of them saw counts once. If
    `on_gpu` says that the program uses a GPU, the processor's share alone would mislead and is not
    given. The price is by `samples_s`, the program's rate, and needs no counter."""
    cost = None
    if price_per_hour is not None and samples_s:
        cost = price_per_hour / 3600 / samples_s * _MILLION
    seconds = (end_ns - start_ns) / 1e9
    if seconds <= 0:
        return Energy(cost_per_million_samples=cost)
    working = at_work(telemetry, start_ns, end_ns, on_gpu)
    joules, source = _gpu_energy(telemetry, working, start_ns, end_ns)
    if joules is None and not working and not on_gpu:
        counted = [
            (sample.at_ns, sample.package_energy_j)
            for sample in sorted(telemetry, key=lambda sample: sample.at_ns)
            if sample.package_energy_j is not None
        ]
        joules = growth(counted, start_ns, end_ns)
        source = PACKAGE if joules is not None else ""
    each = joules / samples if joules is not None and samples > 0 else None
    carbon = None
    if carbon_g_per_kwh is not None and each is not None:
        carbon = each * _MILLION / _JOULES_PER_KWH * carbon_g_per_kwh
    return Energy(
        joules_per_step=joules / steps if joules is not None and steps > 0 else None,
        joules_per_sample=each,
        mean_power_w=joules / seconds if joules is not None else None,
        source=source,
        cost_per_million_samples=cost,
        carbon_g_per_million_samples=carbon,
    )


def _gpu_energy(
    telemetry: Sequence[Telemetry], working: Sequence[int], start_ns: int, end_ns: int
) -> tuple[float | None, str]:
    """Return the joules of all working GPUs or of none: one that is left out would make the others
    look frugal."""
    total, source, seen = 0.0, COUNTER, readings(telemetry)
    for index in working:
        counted = [(at, d.energy_j) for at, d in seen[index] if d.energy_j is not None]
        joules = growth(counted, start_ns, end_ns)
        if not joules:  # some counters stand still: a GPU at work never does
            power = [(at, d.power_w) for at, d in seen[index] if d.power_w is not None]
            joules, source = amount(power, start_ns, end_ns), POWER
        if joules is None:
            return None, ""
        total += joules
    return (total, source) if working else (None, "")


MIN_FULL_SHARE = 0.85
"""Share of the processors in use from which a thread that wants to run often has to wait."""


def timed(case: Case) -> list[Telemetry]:
    """Return the looks at the machine while light steps ran."""
    light = [step for step in case.steps if step.window == "light"]
    if not light:
        return []
    return inside(case.telemetry, light[0].start_ns, light[-1].start_ns + light[-1].dur_ns)


def host_use(case: Case) -> float | None:
    """Return the share of all processors of the machine in use, whoever used them."""
    seen = [s.host_cpu_percent for s in timed(case) if s.host_cpu_percent is not None]
    return fmean(seen) / 100 if seen else None


def cores(case: Case) -> int:
    """Return the cores that the program may use; 0 if it is not known."""
    return case.run.environment.cores if case.run is not None else 0


def ranks_here(case: Case) -> int:
    """Return the ranks on this machine: as torchrun says, else all of them, spread over the nodes
    of a cluster."""
    variables = case.run.environment.variables if case.run is not None else {}
    here, nodes = variables.get("LOCAL_WORLD_SIZE", ""), variables.get("SLURM_NNODES", "")
    if here.isdigit() and int(here):
        return int(here)
    return max(case.ranks // max(int(nodes) if nodes.isdigit() else 1, 1), 1)


def used_cores(case: Case) -> float:
    seen = case.telemetered
    return (seen.program_cores or 0.0) + (seen.worker_cores or 0.0)


def below_ceilings(case: Case) -> float | None:
    """Return the share of the step that operators on a CPU lose against the machine's ceilings: the
    most that threads could gain if each had a core. A rank that waits for another's operators waits
    for the same reason. Return None without ceilings."""
    work = case.work
    if work is None or work.attained is None:
        return None
    return min(work.op_share + work.communication_share, 1.0) * (1 - work.attained)
