"""The device waits for launches: kernels shorter than the host needs to launch the next one."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured, of_step
from ridgeline.diagnosis.rules._launch import (
    MIN_LAUNCH_SHARE,
    bound_of,
    by_function,
    can_look,
    cost,
    doubt_of,
    fixed_sizes,
    kernels,
    launch_ns,
    launches,
    left,
    mostly_small,
    pace_ns,
    small,
)
from ridgeline.diagnosis.rules._user_code import model_call, models
from ridgeline.records.finding import Finding
from ridgeline.records.trace import Place
from ridgeline.report.plain import function_label

SMALL_KERNELS = Rule(id="small-kernels", family="launch", budget="overhead", needs=("sites", "gpu"))

MIN_EMPTY_QUEUE_SHARE = 0.3
"""Share of the launches that find nothing queued. With fewer, the host is ahead of the device."""
SURE_WAITING_SHARE = 0.5
"""Share of the step waited that tracing with stacks cannot make up."""
ONE_FUNCTION_SHARE = 0.3
"""Share of all small kernels from which the function that launches them is named."""


def small_kernels(case: Case) -> Iterator[Finding]:
    """Many small kernels: each ends before the host has launched the next, and the device waits."""
    every = launches(case)
    little = small(case)
    many = kernels(little)
    queue = case.study.launch.empty_queue if case.study is not None else None
    if not mostly_small(case) or (queue is not None and queue < MIN_EMPTY_QUEUE_SHARE):
        return
    waits = left(case)
    if waits < MIN_LAUNCH_SHARE or (
        can_look(case, CUDA_GRAPH_CANDIDATE) and any(cuda_graph_candidate(case))
    ):
        return  # cuda-graph-candidate says how to launch them all at once
    most = max(by_function(little).values(), key=kernels, default=[])
    place = most[0].place if kernels(most) >= ONE_FUNCTION_SHARE * many else None
    sites = most if place is not None else little
    share, who, there = waits, "The program", ""
    change = "model = torch.compile(model)  # fewer, larger kernels; or a larger batch"
    if place is not None:
        # All calls of the function count: views and wrappers cost the host as much as kernels.
        share = min(cost(case, [site for site in case.sites.ops if site.place == place]), waits)
        who = function_label(place.function, place.file)
        there = f"; of these {round(kernels(sites))} in {who}"
        if place.function not in ("", "main", "<module>"):
            change = f"@torch.compile(dynamic=True)\ndef {place.function}(…): …"
    if share < MIN_LAUNCH_SHARE:
        return
    typical = sum(site.device_ns for site in sites) / max(kernels(sites), 1.0)
    text = f"{units.count(round(every))}, {units.percent(many / every)} of them under "
    evidence = [
        of_step("waiting for launches", waits),
        measured("kernels a step", f"{text}{units.seconds(pace_ns(case) / 1e9)}{there}", every),
    ]
    if queue is not None:
        evidence.append(measured("launches into an empty queue", units.percent(queue), queue))
    sure = case.kind == "run" or not case.sites.stacks or waits >= SURE_WAITING_SHARE
    yield make_finding(
        SMALL_KERNELS,
        claim=f"{who} launches {units.count(round(kernels(sites)))} kernels a step, "
        f"{units.seconds(typical / 1e9)} each: the GPU waits for launches",
        share=share,
        evidence=evidence,
        place=place,
        fix="compile",
        change=change,
        confidence="medium" if sure else "low",
        doubt=doubt_of(case),
        bound=bound_of(case, share),
    )


CUDA_GRAPH_CANDIDATE = Rule(
    id="cuda-graph-candidate", family="launch", budget="overhead", needs=("sites", "shapes", "gpu")
)

MAX_SYNCHRONISATIONS = 2.0
"""Synchronisations a step that a graph can bear: reading the loss at the step's end is one."""


def cuda_graph_candidate(case: Case) -> Iterator[Finding]:
    """Every step launches the same kernels, and the device waits for it: a graph would not."""
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
        CUDA_GRAPH_CANDIDATE,
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
