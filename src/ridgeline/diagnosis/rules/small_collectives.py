"""Many small exchanges between ranks, each of which pays for its own start."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._ranks import (
    asked_at,
    exposed,
    sharded_change,
    small_groups,
    wrapped_at,
)
from ridgeline.diagnosis.rules._user_code import located_call
from ridgeline.records.finding import Confidence, Finding
from ridgeline.records.sites import CollectiveSite
from ridgeline.source.calls import SourceCall

MIN_SHARE = 0.02

RULE = Rule(id="small-collectives", family="communication", budget="communication")


def look(case: Case) -> Iterator[Finding]:
    for sites in small_groups(case):
        calls = sum(site.calls for site in sites)
        share = exposed(case, *sites) * (1 - 1 / calls)
        if share >= MIN_SHARE:
            yield _finding(case, sites, calls, share)


def _finding(case: Case, sites: Sequence[CollectiveSite], calls: float, share: float) -> Finding:
    site = max(sites, key=lambda s: s.calls)
    call = asked_at(case, site)
    wrapped = wrapped_at(case, site) if call is None else None
    total = sum(s.bytes * s.calls for s in sites if s.bytes is not None)
    sized = any(s.bytes is not None for s in sites)
    each = sum(s.ns for s in sites) / calls / 1e9
    about = "about " if any(s.estimated for s in sites) else ""
    size = f" of {about}{units.bytes_(total / calls)} each" if sized else ""
    facts = [
        measured("collectives a step", f"{calls:.0f}{size}, {site.name}", calls),
        measured("a call takes", units.seconds(each), each),
    ]
    if sized:
        facts.append(measured("all of them together", f"{about}{units.bytes_(total)} a step"))
    level: Confidence = "high" if call is not None else "medium" if sized else "low"
    return make_finding(
        RULE,
        claim=f"{calls:.0f} small {site.name}s a step{size}, where one would do",
        share=share,
        confidence=level,
        place=located_call(case, wrapped) or site.place,
        line=call.line if call is not None else None,
        evidence=facts,
        change=_change(site, call, wrapped),
        doubt="" if call is not None else "the calls may depend on each other",
    )


def _change(site: CollectiveSite, call: SourceCall | None, wrapped: SourceCall | None) -> str:
    if site.sharding:
        return sharded_change(site, wrapped)
    if wrapped is not None:
        return "DistributedDataParallel(model, bucket_cap_mb=25)   # the default, or more"
    name = site.name
    first = f"# instead of {call.text}, tensor by tensor:\n" if call is not None else ""
    if name not in ("all_reduce", "collective"):
        return (
            f"{first}flat = torch.cat([t.reshape(-1) for t in tensors])\n"
            f"…   # one {name} of flat, then flat.split([t.numel() for t in tensors])"
        )
    return (
        f"{first}flat = torch.cat([t.reshape(-1) for t in tensors])\n"
        "dist.all_reduce(flat)\n"
        "for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):\n"
        "    t.copy_(part.view_as(t))"
    )
