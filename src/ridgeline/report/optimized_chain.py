"""How far each rung stands from the unchanged program: the ratios on the way there, multiplied."""

import math

from ridgeline.records.facts import Ratio
from ridgeline.records.optimized import Optimized, Rung
from ridgeline.report.comparison_numbers import is_ratio
from ridgeline.report.optimized_ladder import MATTERS, Line, lines

Contested = tuple[frozenset[str], tuple[str, ...], Ratio | None]


def cumulative(found: Optimized, rung: Rung) -> float | None:
    """Times better than the unchanged program. Each ratio is of pairs that ran beside the rung
    before it, so that a machine that was disturbed for minutes is in none of them: the unchanged
    program's own step, measured minutes before, made 10.1 × of what was 4.63 ×. None where a step
    is not the same step."""
    if rung.alters == "semantics":
        return None
    whole, on_the_way = 1.0, dict[Contested, float]()
    for line in lines(found):
        known = on_the_way.get(_contested(line.rung))
        reached = known if known is not None else _times(whole, line.rung.ratio)
        if rung in line.rungs:
            return reached
        if _on_the_way(line) and reached is not None:
            whole = on_the_way[_contested(line.rung)] = reached
    return None


def by_rungs(found: Optimized) -> float | None:
    """What was kept in the end, by the rungs: what was left out again is divided away. None where
    nothing was."""
    wanted = found.total.fixes if found.total is not None else ()
    taken: set[Contested] = set()
    whole, any_kept = 1.0, False
    for line in lines(found):
        # Another batch size is tried after the whole, and is no part of it.
        if not _on_the_way(line) or (line.apart and line.rung.fix not in wanted):
            continue
        any_kept = any_kept or line.kept
        if _contested(line.rung) not in taken:
            taken.add(_contested(line.rung))
            whole = _times(whole, line.rung.ratio) or whole
        if not line.kept:
            gone = [rung.without for rung in line.rungs if rung.without is not None]
            whole /= math.prod(ratio.value for ratio in gone if is_ratio(ratio.value))
    return whole if any_kept and is_ratio(whole) else None


def disagreement(found: Optimized) -> tuple[float, Ratio] | None:
    """What the rungs come to and the whole's own ratio, where its interval leaves that out and the
    difference matters."""
    rungs = by_rungs(found)
    if found.total is None or rungs is None:
        return None
    ratio = found.total.ratio
    if not is_ratio(ratio.value) or ratio.ci_low <= rungs <= ratio.ci_high:
        return None
    near = 1 / MATTERS <= rungs / ratio.value <= MATTERS
    return None if near else (rungs, ratio)


def _on_the_way(line: Line) -> bool:
    """Kept, or kept once: the ratios after it were measured on top of it."""
    return line.rung.ratio is not None and line.rung.status in ("kept", "dropped")


def _contested(rung: Rung) -> Contested:
    """Of several tried as one some may be dropped later: two lines, and one gain."""
    return frozenset((rung.fix, *rung.together)), rung.beside, rung.ratio


def _times(whole: float, ratio: Ratio | None) -> float | None:
    return whole * ratio.value if ratio is not None and is_ratio(ratio.value) else None
