"""Every step launches the same kernels, and the device waits for it: a graph would not."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured, of_step
from ridgeline.diagnosis.rules._launch import (
    MIN_LAUNCH_SHARE,
    bound_of,
    doubt_of,
    fixed_sizes,
    kernels,
    launch_ns,
    launches,
    left,
    mostly_small,
)
from ridgeline.diagnosis.rules._user_code import model_call, models
from ridgeline.records.finding import Finding
from ridgeline.records.trace import Place

RULE = Rule(
    id="cuda-graph-candidate", family="launch", budget="overhead", needs=("sites", "shapes", "gpu")
)

MAX_SYNCHRONISATIONS = 2.0
"""Synchronisations a step that a graph can bear: reading the loss at the step's end is one."""


def look(case: Case) -> Iterator[Finding]:
    many = launches(case)
    regions = case.study.regions if case.study is not None else ()
    has_graphs = any(region.kind == "graph" for region in regions)
    if not mostly_small(case) or not fixed_sizes(case) or has_graphs:
        return
    if sum(sync.per_step for sync in case.syncs) > MAX_SYNCHRONISATIONS:
        return
    if (share := left(case)) < MIN_LAUNCH_SHARE:
        return
    place, name = _model(case)
    mean_ns = sum(site.device_ns for site in case.sites.ops) / max(kernels(case.sites.ops), 1.0)
    host_s = launch_ns(case) / 1e9
    text = f"{units.count(round(many))}, {units.seconds(mean_ns / 1e9)} each on average"
    yield make_finding(
        RULE,
        claim=f"The GPU waits {units.percent(round(share, 3))} of each step for Python to launch "
        f"the same {units.count(round(many))} kernels of the same sizes",
        share=share,
        evidence=[
            of_step("device busy", case.busy or 0.0),
            measured("kernels a step", text, many),
            derived(
                "the host, from launch to launch", f"{units.seconds(host_s)} on average", host_s
            ),
            measured("sizes", f"the same in all {case.sites.steps} traced steps"),
        ],
        place=place,
        fix="compile-reduce-overhead",
        change=f'{name} = torch.compile({name}, mode="reduce-overhead")  # or, by hand:\n'
        f"{name} = torch.cuda.make_graphed_callables({name}, (example,))",
        confidence="medium",
        doubt="; ".join(
            filter(None, ("sizes in steps that were not traced are not known", doubt_of(case)))
        ),
        bound=bound_of(case, share),
    )


def _model(case: Case) -> tuple[Place | None, str]:
    """Return where the model is called and its name there, else the function with most launches."""
    if not models(case):
        sites = [site for site in case.sites.ops if site.place is not None and site.kernels]
        most = max(sites, key=lambda site: kernels([site]), default=None)
        return (most.place if most is not None else None), "model"
    place = model_call(case)
    source = case.sources.get(place.file) if place is not None else None
    line = source.line(place.line) if source is not None and place is not None else ""
    named = (name for name in ("model", "net", "network") if f"{name}(" in line)
    return place, next(named, "model")
