"""Many small exchanges between ranks, each of which pays for its own start."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._machine import place_of_call
from ridgeline.diagnosis.rules._ranks import (
    asked_at,
    exposed,
    sharded_change,
    small_sites,
    wrapped_at,
)
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.sites import CollectiveSite
from ridgeline.source.calls import SourceCall

LEAST = 0.02

RULE = Rule(id="small-collectives", family="communication", budget="communication")


def look(case: Case) -> Iterator[Finding]:
    groups: dict[tuple[str, str, str], list[CollectiveSite]] = {}
    for site in small_sites(case):
        where = (site.place.file, site.place.function) if site.place is not None else ("", "")
        groups.setdefault((*where, "backward" * (site.phase == "backward")), []).append(site)
    for sites in groups.values():
        calls = sum(site.calls for site in sites)
        share = exposed(case, *sites) * (1 - 1 / calls)
        if share >= LEAST:
            yield _finding(case, sites, calls, share)


def _finding(case: Case, sites: Sequence[CollectiveSite], calls: float, share: float) -> Finding:
    site = max(sites, key=lambda one: one.calls)
    call = asked_at(case, site)
    wrapped = wrapped_at(case, site) if call is None else None
    sizes = [one.bytes * one.calls for one in sites if one.bytes is not None]
    mean = sum(sizes) / calls if sizes else None
    each = sum(one.ns for one in sites) / calls / 1e9
    about = "about " if any(one.estimated for one in sites) else ""
    size = f" of {about}{units.bytes_(mean)} each" if mean is not None else ""
    said = [
        Evidence(what="collectives a step", text=f"{calls:.0f}{size}, {site.name}", value=calls),
        Evidence(what="a call takes", text=units.seconds(each), value=each),
    ]
    if sizes:
        said.append(
            Evidence(what="all of them together", text=f"{about}{units.bytes_(sum(sizes))} a step")
        )
    level: Confidence = "high" if call is not None else "medium" if mean is not None else "low"
    return make_finding(
        RULE,
        claim=f"{calls:.0f} small {site.name}s a step{size}, where one would do",
        share=share,
        confidence=level,
        place=site.place if call is not None or wrapped is None else place_of_call(wrapped),
        line=call.line if call is not None else None,
        evidence=said,
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
