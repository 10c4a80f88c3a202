"""Gradients are accumulated over several backwards, and exchanged after each."""

from collections.abc import Iterator
from statistics import median

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured
from ridgeline.diagnosis.rules._ranks import exposed
from ridgeline.diagnosis.rules._user_code import place_at
from ridgeline.records.finding import Finding
from ridgeline.records.sites import CollectiveSite
from ridgeline.source.calls import SourceCall, calls_at

MIN_SHARE = 0.02
MIN_EXCHANGES = 1.5
"""Bytes exchanged a step, as a multiple of the parameters' own: gradients that travel once a step
are 1."""

RULE = Rule(id="sync-in-accumulation", family="communication", budget="communication")


def look(case: Case) -> Iterator[Finding]:
    backwards = _backwards(case)
    sites = [
        site
        for site in case.exchange.sites
        if site.phase == "backward" and site.name in ("all_reduce", "reduce_scatter", "collective")
    ]
    if backwards < 2 or not sites:
        return
    times = _times(case, sites, backwards)
    if times is None or times < MIN_EXCHANGES:
        return
    share = exposed(case, *sites) * (1 - 1 / times)
    if share < MIN_SHARE:
        return
    modules = case.capture.modules if case.capture is not None else ()
    called = (place for m in modules if (place := place_at(m.place)) is not None)
    place = sites[0].place or next(called, None)
    call = next(iter(calls_at(case.sources, place, ("backward",))), None)
    calls = sum(site.calls for site in sites)
    size = sum((site.bytes or 0) * site.calls for site in sites)
    number = f"{calls:.0f} a step" + (f", {units.bytes_(size)}" if size else "")
    facts = [
        measured("backwards a step", f"{backwards:.3g}", backwards),
        measured("collectives in them", number, calls),
        derived("gradients exchanged", f"{times:.3g} times a step", times),
    ]
    yield make_finding(
        RULE,
        claim=f"gradients are exchanged {times:.2g} times a step: after each of "
        f"{backwards:.2g} accumulated backwards, where the last would do",
        share=share,
        confidence="high" if _parameter_bytes(case) and size else "medium",
        place=place,
        line=call.line if call is not None else None,
        evidence=facts,
        change=_change(sites[0], call),
    )


def _backwards(case: Case) -> float:
    counted = [s.backwards / max(s.optimizer_steps, 1) for s in case.steps if s.detailed]
    return median(counted) if counted else case.exchange.backwards


def _times(case: Case, sites: list[CollectiveSite], backwards: float) -> float | None:
    """Return how often each gradient travels in a step; None if nothing tells."""
    own = _parameter_bytes(case)
    if own and all(site.bytes is not None for site in sites):
        return min(sum((site.bytes or 0) * site.calls for site in sites) / own, backwards)
    # Every bucket travels in every backward: as often as there are backwards, or a multiple of it.
    even = all(abs(site.calls / backwards - round(site.calls / backwards)) < 0.05 for site in sites)
    many = all(site.calls >= backwards for site in sites)
    return backwards if even and many else None


def _parameter_bytes(case: Case) -> int:
    modules = case.capture.modules if case.capture is not None else ()
    return sum(m.parameter_bytes for m in modules if not m.loss and m.calls > m.evaluation_calls)


def _change(site: CollectiveSite, call: SourceCall | None) -> str:
    line = call.text if call is not None else "loss.backward()"
    if site.sharding == "fsdp2":
        return (
            "model.set_requires_gradient_sync(last)   # last: True for the last part of a step\n"
            "…   # the forward\n"
            f"{line}"
        )
    return (
        "with nullcontext() if last else model.no_sync():   # last: the last part of a step\n"
        "    …   # the forward\n"
        f"    {line}"
    )
