"""What the step would take without some of the host's waits: the traced steps gone through again.

A launch starts on the device when the host has come to it and what is before it on its stream is
done; a wait lets the host go on when the device is done. Tracing slows the host, so its time is
scaled until the steps gone through take as long as the untraced ones did.
"""

from collections.abc import Collection
from functools import lru_cache

from ridgeline.records.sites import Replay

LATENCY_NS = 5_000
"""From the launching call to the device: 3 to 8 µs on GPUs from V100 to H200."""
RETURN_NS = 3_000
"""From the device's end to the host going on."""
FASTEST, SLOWEST = 0.1, 1.5
"""The untraced host's time against the traced one's: 0.3 to 0.9 was seen."""
ROUNDS = 9
"""Halvings: 1.4 / 2 ** 9 is 0.3 % of the host's time."""

MOST = 12
"""Sites asked about one by one: the costliest."""


def length_ns(replay: Replay, scale: float, without: Collection[int] = ()) -> float:
    """Of a step, with the host's time scaled, without the waits of some sites."""
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
            end = max(host + LATENCY_NS, ends[stream]) + dur
            ends[stream] = end
            last = max(last, end)
        elif site not in gone:
            host = max(host, last) + RETURN_NS
    return max(host, last) / replay.steps


def scale_for(replay: Replay, step_ns: float) -> float:
    """Of the host's time, for a step to take so long."""
    low, high = FASTEST, SLOWEST
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if length_ns(replay, middle) < step_ns:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@lru_cache(maxsize=4)
def saved_shares(replay: Replay, step_ns: float, traced: bool) -> tuple[float, ...]:
    """Of each site, what of the step would be gone without its waits. Where taking away one moves
    the wait to the next, what all together would save is shared out by what each saves alone, or
    evenly. `traced`: the step is the traced one, and the host is taken as it was."""
    count = len(replay.stays)
    scale = 1.0 if traced else scale_for(replay, step_ns)
    whole = length_ns(replay, scale)
    of = max(whole, step_ns)  # what going through again does not explain, nothing here takes away
    if not whole or not count:
        return (0.0,) * count
    seen = sorted({site for site in replay.site if 0 <= site < MOST})
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
