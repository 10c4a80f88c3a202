"""Gradients are filled with zeros each step and then added to, where they could be made anew."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured, of_step
from ridgeline.diagnosis.rules._launch import (
    ACCUMULATE,
    MIN_SHARE,
    cost,
    dims_of,
    outer,
    parameter_dims,
    parameters,
)
from ridgeline.diagnosis.rules._user_code import fix_code, located, option
from ridgeline.records.finding import Finding
from ridgeline.records.sites import OpSite
from ridgeline.source.calls import SourceCall, calls_at

RULE = Rule(id="zero-grad-fill", family="launch", budget="work", needs=("sites",))

_FILLS = ("aten::zero_", "aten::_foreach_zero_")
CPU_MARGIN = 1.2
"""On a CPU the gain may be this many times the operators' own time. That time bounded a twin's gain
by 1.34 ×; alternating with its fixed twin in one process the gain was 1.27 × (medians) to 1.37 ×
(lower quartiles), on a busy machine. The rest was not measured: filling may push other data out of
the cache."""


def look(case: Case) -> Iterator[Finding]:
    fills = _fills(case)
    adds = [
        s for s in case.sites.ops if s.op in ("aten::add_", "aten::add") and s.inside(ACCUMULATE)
    ]
    added, filled = sum(s.calls for s in adds), _filled(case, fills)
    if not fills or not added:  # without additions these are buffers of another kind
        return
    # Of gradients accumulated over several batches only the first addition of each is needless.
    part = min(filled / added, 1.0)
    filling, adding = cost(case, fills), part * cost(case, adds)
    share = (filling + adding) * (1.0 if case.on_gpu else CPU_MARGIN)
    if share < MIN_SHARE:
        return
    place = next((site.place for site in fills if site.place is not None), None)
    call = _call(calls_at(case.sources, place, ("zero_grad", "zero_")))
    moved = sum(site.bytes for site in fills) + part * sum(site.bytes for site in adds)
    text = f"{units.percent(adding)} of the step, {round(added * part)} additions"
    yield make_finding(
        RULE,
        claim=f"Gradients are filled with zeros and added to each step: "
        f"{units.seconds(share * case.step_ms / 1e3)} that leaving them None saves",
        share=share,
        evidence=[
            of_step("filling", filling),
            measured("adding onto zeros", text, adding),
            *([derived("memory moved", units.bytes_(moved), moved)] if moved else ()),
        ],
        place=place,
        line=call.line if call is not None else None,
        fix="set-to-none",
        change=_change(case, call),
        confidence="high" if call is not None else "medium",
    )


def _fills(case: Case) -> list[OpSite]:
    """Return the operators that fill gradients: in `zero_grad`, or by hand with the sizes of the
    parameters."""
    sizes = parameter_dims(case)
    return [
        site
        for site in case.sites.ops
        if outer(site) in _FILLS
        and (site.phase == "optimizer" or (site.phase != "backward" and dims_of(site) in sizes))
    ]


def _filled(case: Case, fills: Sequence[OpSite]) -> float:
    """Return how many gradients a step fills, in one call or one by one."""
    if any(site.op == "aten::_foreach_zero_" for site in fills):
        return parameters(case)
    return sum(site.calls for site in fills if site.op == "aten::zero_")


def _call(calls: Sequence[SourceCall]) -> SourceCall | None:
    kept = [c for c in calls if c.option("set_to_none") == "False" or c.name == "zero_"]
    return next(iter(kept or calls), None)


def _change(case: Case, call: SourceCall | None) -> str:
    if call is None:
        return "optimizer.zero_grad(set_to_none=True)"
    if call.name == "zero_":
        return f"{call.on} = None"
    place = located(case, call.file, call.line)
    if code := fix_code(case, place, option("set-to-none", place, call.name, "set_to_none", True)):
        return code
    if call.option("set_to_none"):
        return call.without("set_to_none")
    return f"{call.on}.zero_grad(set_to_none=True)"
