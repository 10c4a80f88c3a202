"""Every step launches the same kernels, and the device waits for it: a graph would not."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._launch import (
    LEAST_LEFT,
    as_traced,
    bound_of,
    doubt_of,
    fixed_sizes,
    kernels,
    launch_ns,
    launches,
    left,
    mostly_small,
    place_at,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import ModuleSeen
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from ridgeline.source.loops import function_around

RULE = Rule(
    id="cuda-graph-candidate", family="launch", budget="overhead", needs=("sites", "shapes", "gpu")
)

SYNCHRONISATIONS = 2.0
"""A step: reading the loss at its end does not stand in a graph's way, more of them do."""


def look(case: Case) -> Iterator[Finding]:
    many = launches(case)
    if not mostly_small(case) or not fixed_sizes(case) or _graphs(case):
        return
    if sum(sync.per_step for sync in case.syncs) > SYNCHRONISATIONS:
        return
    if (share := left(case)) < LEAST_LEFT:
        return
    place, line, name = _place(case)
    busy = case.busy or 0.0
    yield make_finding(
        RULE,
        claim=f"The GPU waits {units.percent(round(share, 3))} of each step for Python to launch "
        f"the same {units.count(round(many))} kernels of the same sizes",
        share=share,
        evidence=[
            Evidence(what="device busy", text=f"{units.percent(busy)} of the step", value=busy),
            Evidence(
                what="kernels a step",
                value=many,
                text=f"{units.count(round(many))}, "
                f"{units.seconds(_mean_ns(case) / 1e9)} each on average",
            ),
            Evidence(
                what="the host, from launch to launch",
                value=launch_ns(case) / 1e9,
                text=f"{units.seconds(launch_ns(case) / 1e9)} on average",
                source="derived",
            ),
            Evidence(what="sizes", text=f"the same in all {case.sites.steps} traced steps"),
        ],
        place=place,
        line=line,
        change=f'{name} = torch.compile({name}, mode="reduce-overhead")  # or, by hand:\n'
        f"{name} = torch.cuda.make_graphed_callables({name}, (example,))",
        confidence="medium",
        doubt="; ".join(
            filter(None, ("sizes in steps that were not traced are not known", doubt_of(case)))
        ),
        bound=bound_of(case, share),
    )


def _graphs(case: Case) -> bool:
    return case.study is not None and any(r.kind == "graph" for r in case.study.regions)


def _mean_ns(case: Case) -> float:
    worked = sum(site.device_ns for site in case.sites.ops)
    return worked / max(kernels(case.sites.ops), 1.0)


def _place(case: Case) -> tuple[Place | None, int | None, str]:
    """Where the model is called, and its name there; else the function with most launches."""
    modules = case.capture.modules if case.capture is not None else ()
    largest: ModuleSeen | None = max(
        (m for m in modules if not m.loss), key=lambda m: m.parameters, default=None
    )
    at = place_at(largest.place) if largest is not None else None
    if at is not None:
        source = case.sources.get(at.file)
        function = function_around(source, at.line) if source is not None else ""
        named = as_traced(case, Place(file=at.file, line=at.line, function=function))
        return named, at.line, _named(case.sources, at)
    sites = [site for site in case.sites.ops if site.place is not None and site.kernels]
    most = max(sites, key=lambda site: kernels([site]), default=None)
    return (most.place if most is not None else None), None, "model"


def _named(sources: SourceFiles, at: Place) -> str:
    source = sources.get(at.file)
    line = source.line(at.line) if source is not None else ""
    return next((name for name in ("model", "net", "network") if f"{name}(" in line), "model")
