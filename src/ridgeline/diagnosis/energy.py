"""Energy of a step and of a sample, and what a million samples cost in money and CO₂.

By the GPUs' own counters where they have them, else their power summed over time, else the
processor's counter, which leaves out memory, fans and losses. Never the wall's.
"""

from collections.abc import Sequence

from ridgeline.diagnosis.counter import amount, growth
from ridgeline.diagnosis.gpus_at_work import at_work, readings
from ridgeline.records.run import Telemetry
from ridgeline.records.run_summary import Energy

COUNTER = "GPU energy counter"
POWER = "GPU power, summed"
PACKAGE = "processor energy counter (RAPL)"
_JOULES_PER_KWH = 3.6e6
_MILLION = 1e6


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
    """Over a span that holds `steps` steps and `samples` samples, of all GPUs together.

    `telemetry` of several ranks may be put together: a GPU that two of them saw counts once.
    `on_gpu`: whether the program is known to use a GPU; if so the processor's share alone would
    mislead and is not given. `samples_s`: the program's rate, which the price is by, so that the
    two agree; it needs no counter."""
    cost = None
    if price_per_hour is not None and samples_s:
        cost = price_per_hour / 3600 / samples_s * _MILLION
    seconds = (end_ns - start_ns) / 1e9
    if seconds <= 0:
        return Energy(cost_per_million_samples=cost)
    working = at_work(telemetry, start_ns, end_ns, on_gpu)
    joules, source = _of_gpus(telemetry, working, start_ns, end_ns)
    if joules is None and not working and not on_gpu:
        joules, source = _of_package(telemetry, start_ns, end_ns)
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


def _of_gpus(
    telemetry: Sequence[Telemetry], working: Sequence[int], start_ns: int, end_ns: int
) -> tuple[float | None, str]:
    """All of them or none: a GPU left out would make the others look frugal."""
    total, source, seen = 0.0, COUNTER, readings(telemetry)
    for index in working:
        counted = [(at, d.energy_j) for at, d in seen[index] if d.energy_j is not None]
        joules = growth(counted, start_ns, end_ns)
        if joules is None or joules == 0:  # some counters stand still: a GPU at work never does
            power = [(at, d.power_w) for at, d in seen[index] if d.power_w is not None]
            joules, source = amount(power, start_ns, end_ns), POWER
        if joules is None:
            return None, ""
        total += joules
    return (total, source) if working else (None, "")


def _of_package(
    telemetry: Sequence[Telemetry], start_ns: int, end_ns: int
) -> tuple[float | None, str]:
    counted = [
        (sample.at_ns, sample.package_energy_j)
        for sample in sorted(telemetry, key=lambda sample: sample.at_ns)
        if sample.package_energy_j is not None
    ]
    joules = growth(counted, start_ns, end_ns)
    return (joules, PACKAGE) if joules is not None else (None, "")
