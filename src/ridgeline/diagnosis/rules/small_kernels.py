"""Many small kernels: each ends before the host has launched the next, and the device waits."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules import cuda_graph_candidate
from ridgeline.diagnosis.rules._launch import (
    LEAST_LEFT,
    bound_of,
    by_function,
    cost,
    doubt_of,
    kernels,
    launches,
    left,
    mostly_small,
    pace_ns,
    small,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.report.names import function_label

RULE = Rule(id="small-kernels", family="launch", budget="overhead", needs=("sites", "gpu"))

EMPTY = 0.3
"""Of launches that find nothing queued: where fewer do, the host is ahead of the device."""
SURE = 0.5
ONE_FUNCTION = 0.3
"""Of all small kernels: from here on the function that launches them is named."""


def look(case: Case) -> Iterator[Finding]:
    every = launches(case)
    little = small(case)
    many = kernels(little)
    queue = case.study.launch.empty_queue if case.study is not None else None
    if not mostly_small(case) or (queue is not None and queue < EMPTY):
        return
    if (waits := left(case)) < LEAST_LEFT or _replayable(case):
        return
    most = max(by_function(little).values(), key=kernels, default=[])
    place = most[0].place if kernels(most) >= ONE_FUNCTION * many else None
    sites = most if place is not None else little
    share = waits
    if place is not None:
        # all that the function calls: views and wrappers cost the host as much as kernels
        whole = [site for site in case.sites.ops if site.place == place]
        share = min(cost(case, whole), waits)
    if share < LEAST_LEFT:
        return
    typical = sum(site.device_ns for site in sites) / max(kernels(sites), 1.0)
    who = function_label(place.function, place.file) if place is not None else "The program"
    yield make_finding(
        RULE,
        claim=f"{who} launches {units.count(round(kernels(sites)))} kernels a step, "
        f"{units.seconds(typical / 1e9)} each: the GPU waits for launches",
        share=share,
        evidence=_evidence(
            waits,
            every,
            many,
            pace_ns(case),
            queue,
            f"{round(kernels(sites))} in {who}" if place is not None else "",
        ),
        place=place,
        change=f"@torch.compile(dynamic=True)\ndef {place.function}(…): …"
        if place is not None and place.function not in ("", "main", "<module>")
        else "model = torch.compile(model)  # fewer, larger kernels; or a larger batch",
        confidence="medium" if _sure(case, waits) else "low",
        doubt=doubt_of(case),
        bound=bound_of(case, share),
    )


def _sure(case: Case, waits: float) -> bool:
    """Tracing with stacks cannot make up half a step of waiting."""
    return case.kind == "run" or not case.sites.stacks or waits >= SURE


def _replayable(case: Case) -> bool:
    """Another rule says how to launch them all at once."""
    if not all(case.has(need) for need in cuda_graph_candidate.RULE.needs):
        return False
    return any(True for _ in cuda_graph_candidate.look(case))


def _evidence(
    waits: float, every: float, many: float, pace: float, queue: float | None, there: str
) -> list[Evidence]:
    told = [
        Evidence(what="waiting for launches", text=f"{units.percent(waits)} of the step",
                 value=waits),
        Evidence(what="kernels a step", value=every, text=f"{units.count(round(every))}, "
                 f"{units.percent(many / every)} of them under {units.seconds(pace / 1e9)}"
                 + (f"; of these {there}" if there else "")),
    ]  # fmt: skip
    if queue is not None:
        told.append(Evidence(what="launches into an empty queue", text=units.percent(queue),
                             value=queue))  # fmt: skip
    return told
