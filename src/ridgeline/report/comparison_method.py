"""How a comparison was measured: rounds, looks, intervals, the place."""

import math

from ridgeline.records.comparison import Comparison
from ridgeline.report.comparison_notes import Note
from ridgeline.units import plural, seconds, significant


def method(c: Comparison) -> list[Note]:
    """How it was measured, in two or three lines."""
    host = c.surroundings
    where = [host.device, f"{plural(host.threads, 'thread')} on {plural(host.cores, 'core')}"]
    seed = f"seed {c.seed}"
    found = [Note("rounds", "note", _rounds(c))]
    how = intervals(c)
    if how:
        found.append(Note("intervals", "note", how))
    place = " · ".join([c.mode, f"{c.cache} cache", *(w for w in where if w), seed])
    if c.goal == "throughput" and any(k.throughput_ratio is not None for k in c.candidates):
        found.append(Note("ratios", "note", "of time an item, since throughput is the goal"))
    return [*found, Note("measured", "note", place)]


def _rounds(c: Comparison) -> str:
    planned = c.looks[-1] if c.looks else c.rounds
    text = plural(c.rounds, "round")
    text += f" of {planned:,}" if planned > c.rounds else ""
    look = ""
    if c.rounds in c.looks:
        look = f" at pre-set look {c.looks.index(c.rounds) + 1} of {len(c.looks)}"
    why = {
        "decided": f"stopped when decided{look}",
        "budget": "stopped when the time was spent",
        "all rounds": "all that were planned",
        "interrupted": "interrupted",
    }[c.stopped]
    return f"{text}, {why}; {_clock(c.spent_s)} of the budget of {_clock(c.budget_s)}"


def _clock(value: float) -> str:
    return seconds(float(significant(value, 2))) if math.isfinite(value) else "no limit"


def intervals(c: Comparison) -> str:
    """How the intervals were made, and why at a higher level than the whole."""
    how = "; ".join(dict.fromkeys(k.deciding.method for k in c.candidates if k.deciding.method))
    level = max((k.deciding.level for k in c.candidates), default=1 - c.alpha)
    if not how or not math.isfinite(level):
        return how
    whole = f"{significant(100 * (1 - c.alpha), 3)} %"
    if level <= 1 - c.alpha + 1e-9:
        return f"{how}, at {whole}"
    several = " and candidates" if len(c.candidates) > 1 else ""
    return f"{how}, at {significant(100 * level, 3)} % each: {whole} over all looks{several}"
