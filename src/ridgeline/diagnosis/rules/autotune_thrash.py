"""cuDNN's autotuner, trying kernels again for every new shape."""

from collections import Counter
from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MAX_SHARE, Rule, make_finding
from ridgeline.diagnosis.rules._convolutions import KERNELS, as_traced, the_model
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place

LEAST = 0.02
CALL_NS = 200_000
"""Host time of a convolution beyond which it did more than launch: launching takes 10 to 50 µs,
trying ten kernels takes milliseconds."""
NEW = 0.5
"""Of the shapes of a convolution: at least this part was seen in one traced step alone."""
OFF = "torch.backends.cudnn.benchmark = False"

RULE = Rule(
    id="autotune-thrash", family="kernels", budget="overhead", needs=("sites", "shapes", "gpu")
)


def look(case: Case) -> Iterator[Finding]:
    flags = case.capture.flags if case.capture is not None else None
    if flags is not None and flags.cudnn_benchmark is not True:
        return
    sites = [site for site in case.sites.ops if site.op in KERNELS and site.dims]
    slow = [s for s in sites if s.calls and s.host_ns / s.calls >= CALL_NS]
    fresh = _fresh(case, sites)
    if case.sites.steps < 2 or not slow or fresh < NEW:
        return
    if flags is None and not any(_tried(site) for site in slow):
        return
    spent = sum(site.host_ns for site in slow) - CALL_NS * sum(site.calls for site in slow)
    share = case.host_share(spent)
    if share < LEAST:
        return
    whole = sum(site.host_ns for site in slow) + _asked_ns(case)
    place, line, text = _where(case, slow[0])
    calls = sum(site.calls for site in slow)
    yield make_finding(
        RULE,
        claim="cuDNN's autotuner starts again at every new input size: "
        f"{units.seconds(case.host_s(spent))} a step",
        share=share,
        place=place,
        line=line,
        change=text,
        bound=1 / (1 - min(case.host_share(whole), MAX_SHARE)),
        confidence="high" if flags is not None else "low",
        doubt="" if flags is not None else "the trace does not say that benchmark is on",
        evidence=(
            Evidence(
                what="a convolution's call on the host",
                text=f"{units.seconds(spent / calls / 1e9)} traced, "
                f"{units.significant(calls)} a step",
                value=spent / calls / 1e6,
            ),
            Evidence(what="sizes seen in one step only", text=units.percent(fresh), value=fresh),
            *([Evidence(what="cudnn.benchmark", text="True", source="read")] if flags else []),
        ),
    )  # fmt: skip


def _fresh(case: Case, sites: list[OpSite]) -> float:
    """Of the forward convolutions' sizes: the part seen in one traced step alone."""
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


def _asked_ns(case: Case) -> float:
    """For memory of the driver: each kernel tried wants a workspace of its own."""
    return case.traced_memory.segments.host_ns if case.traced_memory is not None else 0.0


def _tried(site: OpSite) -> bool:
    return sum(kernel.count for kernel in site.kernels) >= 4 * site.calls


def _where(case: Case, site: OpSite) -> tuple[Place | None, int | None, str]:
    made = the_model(case)
    script = case.run.target.name if case.run is not None else ""
    for file in (made.file if made is not None else "", script):
        source = case.sources.get(file) if file else None
        for number, text in enumerate(source.lines if source is not None else (), 1):
            if source is not None and "cudnn.benchmark" in text and "True" in text:
                function = source.function_name(number)
                place = Place(file=as_traced(case, file), line=number, function=function)
                return place, number, OFF
    return site.place, None, OFF
