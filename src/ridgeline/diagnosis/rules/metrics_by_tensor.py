"""Averages of weights, or metrics, are updated one tensor at a time."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, of_step
from ridgeline.diagnosis.rules._launch import MIN_SHARE, Loop, cost, loops
from ridgeline.records.finding import Finding
from ridgeline.source.loops import SourceLoop, loops_at
from ridgeline.source.vectorized import all_at_once

RULE = Rule(id="metrics-by-tensor", family="launch", budget="overhead", needs=("sites", "stacks"))

_UPDATES = frozenset({"mul_", "add_", "lerp_", "copy_", "lerp", "sub_", "mul", "add", "update"})


def look(case: Case) -> Iterator[Finding]:
    for loop in loops(case):
        at = _in_source(case, loop) if loop.over == "state" else None
        if loop.over != "state" or (at is not None and "grad" in at.attributes):
            continue  # a loop that uses gradients is an optimizer's update, written by hand
        if (share := cost(case, loop.sites)) >= MIN_SHARE:
            yield _finding(case, loop, at, share)


def _finding(case: Case, loop: Loop, at: SourceLoop | None, share: float) -> Finding:
    turns, many = units.count(round(loop.turns)), units.count(round(loop.calls))
    each = "" if turns == many else f": {many} operator calls a step"
    return make_finding(
        RULE,
        claim=f"{loop.name} updates {turns} tensors{'' if each else ' a step'} one at a time{each}",
        share=share,
        evidence=[
            measured("calls a step", f"{many}: {', '.join(loop.ops[:4])}", loop.calls),
            of_step("time", share),
        ],
        place=loop.place,
        line=at.line if at is not None else None,
        change=_change(case, at),
        confidence="high" if at is not None else "medium",
    )


def _in_source(case: Case, loop: Loop) -> SourceLoop | None:
    at = [found for found in loops_at(case.sources, loop.place) if not found.trains]
    updating = [found for found in at if found.calls & _UPDATES]
    return min(updating or at, key=lambda found: (-found.inner, found.line), default=None)


def _change(case: Case, loop: SourceLoop | None) -> str:
    source = case.sources.get(loop.file) if loop is not None else None
    if loop is not None and source is not None:
        _, over, target, body = loop.parts
        written = all_at_once(over, target, body) if target is not None else ""
        if written:
            return written
    through = f" that `{loop.over}` gives" if loop is not None and loop.target else ""
    return (
        "torch._foreach_lerp_(averages, weights, 1 - decay)  # names to be replaced by your own: "
        f"lists of all tensors{through}, and the average's factor"
    )
