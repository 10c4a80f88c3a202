"""How long the step would be without some of the host's waits: a replay of the traced steps.

A launch starts on the device when the host has come to it and the work before it on its stream is
done. A wait lets the host go on when the device is done. Tracing slows the host, so its time is
scaled until the replayed steps take as long as the untraced ones did.
"""

from collections.abc import Collection
from functools import lru_cache

from ridgeline.records.sites import Replay

LAUNCH_LATENCY_NS = 5_000
"""The time from the launching call to the device: 3 to 8 µs on GPUs from V100 to H200."""
RETURN_LATENCY_NS = 3_000
"""The time from the end of the device's work until the host goes on."""
MIN_SCALE, MAX_SCALE = 0.1, 1.5
"""Limits of the untraced host's time, as a share of the traced one's: 0.3 to 0.9 was seen."""
HALVINGS = 9
"""1.4 / 2 ** 9 is 0.3 % of the host's time."""

MAX_SITES = 12
"""How many sites, the costliest, are left out one by one."""


def length_ns(replay: Replay, scale: float, without: Collection[int] = ()) -> float:
    """Return the length of a step with the host's time scaled, without the waits of some sites."""
    gone = frozenset(without)
    ends = [0.0] * (max(replay.stream, default=0) + 1)
    host, last = 0.0, 0.0
    for before, asking, site, dur, stream in zip(
        replay.before_ns, replay.asking_ns, replay.site, replay.dur_ns, replay.stream, strict=True
    ):
        host += before * scale
        if site in gone and not replay.stays[site]:
            continue
        host += asking * scale
        if dur >= 0:
            end = max(host + LAUNCH_LATENCY_NS, ends[stream]) + dur
            ends[stream] = end
            last = max(last, end)
        elif site not in gone:
            host = max(host, last) + RETURN_LATENCY_NS
    return max(host, last) / replay.steps


def scale_for(replay: Replay, step_ns: float) -> float:
    """Return the factor by which host time must be scaled so that the replayed step lasts
    `step_ns`."""
    low, high = MIN_SCALE, MAX_SCALE
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if length_ns(replay, middle) < step_ns:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@lru_cache(maxsize=4)
def saved_shares(replay: Replay, step_ns: float, traced: bool) -> tuple[float, ...]:
    """Return for each site the share of the step that would be gone without its waits. If leaving
    out one moves the wait to the next, what all together save is divided by what each saves alone,
    or evenly. With `traced` the step is the traced one, and the host's time is not scaled."""
    count = len(replay.stays)
    scale = 1.0 if traced else scale_for(replay, step_ns)
    whole = length_ns(replay, scale)
    of = max(whole, step_ns)  # what going through again does not explain, nothing here takes away
    if not whole or not count:
        return (0.0,) * count
    seen = sorted({site for site in replay.site if 0 <= site < MAX_SITES})
    alone = {site: max(whole - length_ns(replay, scale, {site}), 0.0) for site in seen}
    together = max(whole - length_ns(replay, scale, seen), 0.0)
    rest = max(together - sum(alone.values()), 0.0)
    total = sum(alone.values())
    found = []
    for site in range(count):
        own = alone.get(site, 0.0)
        part = own / total if total else 1 / len(seen)
        found.append((own + rest * part) / of if site in alone else 0.0)
    return tuple(found)
