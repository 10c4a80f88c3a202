"""Which of the sampled GPUs were the program's, and what was read from each.

Where no process id could be matched (a container), telemetry has every GPU that was visible. Those
that did nothing while the program stepped are then somebody else's, or nobody's.
"""

from collections.abc import Sequence

from ridgeline.diagnosis.counter import NEAR_NS
from ridgeline.records.run import DeviceSample, Telemetry

Readings = dict[int, list[tuple[int, DeviceSample]]]
"""By device, in the order of time."""


def inside(telemetry: Sequence[Telemetry], start_ns: int, end_ns: int) -> list[Telemetry]:
    """Samples within the span, by time; where it is too short to hold one, the nearest."""
    ordered = sorted(telemetry, key=lambda sample: sample.at_ns)
    held = [sample for sample in ordered if start_ns <= sample.at_ns <= end_ns]
    if held:
        return held
    middle = (start_ns + end_ns) // 2
    nearest = min(ordered, key=lambda sample: abs(sample.at_ns - middle), default=None)
    return [nearest] if nearest and abs(nearest.at_ns - middle) <= NEAR_NS else []


def readings(telemetry: Sequence[Telemetry]) -> Readings:
    """Of all devices; of several ranks' telemetry, put together, each device once."""
    found: Readings = {}
    for sample in sorted(telemetry, key=lambda sample: sample.at_ns):
        for device in sample.devices:
            found.setdefault(device.index, []).append((sample.at_ns, device))
    return found


def at_work(
    telemetry: Sequence[Telemetry], start_ns: int, end_ns: int, on_gpu: bool | None = None
) -> tuple[int, ...]:
    """Devices the program was seen on; else those that did anything.

    `on_gpu`: whether the program is known to use one. If so and all were idle (a starved program
    may show 0 % for seconds), the one with most memory in use; if not, none."""
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
