"""Many small kernels: each ends before the host has launched the next, and the device waits."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, of_step
from ridgeline.diagnosis.rules import cuda_graph_candidate
from ridgeline.diagnosis.rules._launch import (
    MIN_LAUNCH_SHARE,
    bound_of,
    by_function,
    can_look,
    cost,
    doubt_of,
    kernels,
    launches,
    left,
    mostly_small,
    pace_ns,
    small,
)
from ridgeline.records.finding import Finding
from ridgeline.report.plain import function_label

RULE = Rule(id="small-kernels", family="launch", budget="overhead", needs=("sites", "gpu"))

MIN_EMPTY_QUEUE_SHARE = 0.3
"""Share of the launches that find nothing queued. With fewer, the host is ahead of the device."""
SURE_WAITING_SHARE = 0.5
"""Share of the step waited that tracing with stacks cannot make up."""
ONE_FUNCTION_SHARE = 0.3
"""Share of all small kernels from which the function that launches them is named."""


def look(case: Case) -> Iterator[Finding]:
    every = launches(case)
    little = small(case)
    many = kernels(little)
    queue = case.study.launch.empty_queue if case.study is not None else None
    if not mostly_small(case) or (queue is not None and queue < MIN_EMPTY_QUEUE_SHARE):
        return
    waits = left(case)
    graph = cuda_graph_candidate
    if waits < MIN_LAUNCH_SHARE or (can_look(case, graph.RULE) and any(graph.look(case))):
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
        RULE,
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
