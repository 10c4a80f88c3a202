"""cuDNN's autotuner, trying kernels again for every new shape."""

from collections import Counter
from collections.abc import Iterator

from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured, read
from ridgeline.diagnosis.rules._operators import KERNELS, the_model
from ridgeline.diagnosis.rules._user_code import as_traced, located
from ridgeline.records.finding import Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place

MIN_SHARE = 0.02
LAUNCH_NS = 200_000
"""A convolution that takes the host longer did more than launch: launching takes 10 to 50 µs,
trying ten kernels takes milliseconds."""
MIN_NEW_SIZES = 0.5
"""Share of the sizes of convolutions that were seen in one traced step alone."""
MIN_TRIED_KERNELS = 4
"""Kernels a call from which the autotuner is taken to be at work."""
OFF = "torch.backends.cudnn.benchmark = False"

RULE = Rule(
    id="autotune-thrash", family="kernels", budget="overhead", needs=("sites", "shapes", "gpu")
)


def look(case: Case) -> Iterator[Finding]:
    flags = case.capture.flags if case.capture is not None else None
    if flags is not None and flags.cudnn_benchmark is not True:
        return
    sites = [site for site in case.sites.ops if site.op in KERNELS and site.dims]
    slow = [s for s in sites if s.calls and s.host_ns / s.calls >= LAUNCH_NS]
    fresh = _fresh(case, sites)
    if case.sites.steps < 2 or not slow or fresh < MIN_NEW_SIZES:
        return
    kernels = [sum(kernel.count for kernel in site.kernels) / site.calls for site in slow]
    if flags is None and max(kernels) < MIN_TRIED_KERNELS:
        return
    calls, whole = sum(site.calls for site in slow), sum(site.host_ns for site in slow)
    spent = whole - LAUNCH_NS * calls
    share = case.host_share(spent)
    if share < MIN_SHARE:
        return
    # Each kernel tried wants a workspace of its own from the driver.
    asked = case.traced_memory.segments.host_ns if case.traced_memory is not None else 0.0
    place = _switch(case)
    text = f"{units.seconds(spent / calls / 1e9)} traced, {units.significant(calls)} a step"
    yield make_finding(
        RULE,
        claim="cuDNN's autotuner starts again at every new input size: "
        f"{units.seconds(case.host_s(spent))} a step",
        share=share,
        place=place or slow[0].place,
        change=OFF,
        bound=gain_without(case.host_share(whole + asked)),
        confidence="high" if flags is not None else "low",
        doubt="" if flags is not None else "the trace does not say that benchmark is on",
        evidence=(
            measured("a convolution's call on the host", text, spent / calls / 1e6),
            measured("sizes seen in one step only", units.percent(fresh), fresh),
            *([read("cudnn.benchmark", "True")] if flags else []),
        ),
    )


def _fresh(case: Case, sites: list[OpSite]) -> float:
    """Return the share of the forward convolutions' sizes that one traced step alone has."""
    steps = case.sites.steps
    counted: Counter[str] = Counter()
    for site in sites:
        if "backward" not in site.op:
            counted[str(site.dims[0])] += round(site.calls * steps)
    sites_a_size = Counter(str(s.dims[0]) for s in sites if "backward" not in s.op)
    if not counted:
        return 0.0
    once = [size for size, calls in counted.items() if calls < 2 * sites_a_size[size]]
    return len(once) / len(counted) if len(counted) > 1 else 0.0


def _switch(case: Case) -> Place | None:
    """Return the line that turns the autotuner on."""
    made = the_model(case)
    script = case.run.target.name if case.run is not None else ""
    for file in (made.file if made is not None else "", script):
        source = case.sources.get(file) if file else None
        for number, text in enumerate(source.lines if source is not None else (), 1):
            if "cudnn.benchmark" in text and "True" in text:
                return replace(located(case, file, number), file=as_traced(case, file))
    return None
