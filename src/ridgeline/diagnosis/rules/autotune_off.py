"""Convolutions of unchanging shapes, without cuDNN's autotuner."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MAX_SHARE, SHARE_TOLERANCE, Rule, make_finding
from ridgeline.diagnosis.rules._convolutions import (
    as_traced,
    convolutions,
    exposed_part,
    needed_ns,
    the_model,
    weight_of,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFile
from ridgeline.trace.analyses.kernels import uses_tensor_cores

LEAST = 0.02
"""Of the step: a setting whose gain is not certain must be worth a try."""
SLOW = 0.25
"""Of the roofline: convolutions with a well chosen kernel reach more, unless they are tiny."""
REACHED = 0.5
"""Of the roofline: what another kernel may reach."""
CHANNELS = 16
"""Fewer on either side and no kernel is near the ceiling: the first layer of an image model."""
SMALL_NS = 20_000
"""A call shorter than this is limited by its start, not by its kernel."""
SETTING = "torch.backends.cudnn.benchmark = True"

RULE = Rule(
    id="autotune-off", family="kernels", budget="work", needs=("capture", "sites", "shapes", "gpu")
)


def look(case: Case) -> Iterator[Finding]:
    flags = case.capture.flags if case.capture is not None else None
    if flags is None or flags.cudnn_benchmark is not False or flags.cudnn_deterministic:
        return
    sites = convolutions(case)
    if not sites or not _fixed(case, sites):
        return
    slow = [site for site in sites if _slow(case, site)]
    spent = sum(site.device_ns for site in slow)
    needed = sum(needed_ns(case, site) for site in slow)
    exposed = exposed_part(case, slow)
    share = case.device_share(spent - needed / REACHED) * exposed
    most = case.device_share(spent - needed) * exposed  # another kernel may reach the roofline
    if share < LEAST:
        return
    place, line, text = _where(case)
    yield make_finding(
        RULE,
        claim="cuDNN's autotuner is off: convolutions of unchanging shapes run without tensor "
        f"cores, at {units.percent(needed / spent)} of what the GPU can do",
        share=share,
        bound=1 / (1 - min(most * (1 + SHARE_TOLERANCE), MAX_SHARE)),
        place=place,
        line=line,
        change=text,
        confidence="medium",
        doubt="whether a faster kernel exists is known only after trying",
        evidence=(
            Evidence(what="cudnn.benchmark", text="False", source="read"),
            Evidence(
                what="slow convolutions", value=spent / 1e6,
                text=f"{units.seconds(spent / 1e9)} a step, {units.seconds(needed / 1e9)} by the "
                "roofline",
            ),
            Evidence(
                what="costliest",
                text=f"weight {'×'.join(map(str, weight_of(slow[0])))}, "
                f"{slow[0].op.removeprefix('aten::')}",
            ),
        ),
    )  # fmt: skip


def _slow(case: Case, site: OpSite) -> bool:
    needed = needed_ns(case, site)
    return bool(needed) and needed < SLOW * site.device_ns and _tunable(site) and _plain(site)


def _plain(site: OpSite) -> bool:
    """Its costliest kernel multiplies without tensor cores, though its type could have them."""
    able = site.dtype in ("bfloat16", "float16", "tf32")
    return able and bool(site.kernels) and uses_tensor_cores(site.kernels[0].name) is False


def _tunable(site: OpSite) -> bool:
    weight = weight_of(site)
    if len(weight) < 3 or weight[1] < CHANNELS:  # of a group; depthwise: one
        return False
    images = [d for d in site.dims if isinstance(d, list | tuple) and len(d) == len(weight)]
    channels = [d[1] for d in images if tuple(d) != weight]
    wide = weight[0] >= CHANNELS and min(channels, default=0) >= CHANNELS
    return wide and site.device_ns >= SMALL_NS * site.calls


def _fixed(case: Case, sites: list[OpSite]) -> bool:
    """The same shapes every step: each site is called a whole number of times a step."""
    whole = [abs(site.calls - round(site.calls)) < 1e-6 and site.calls >= 1 for site in sites]
    return case.sites.steps > 1 and all(whole)


def _where(case: Case) -> tuple[Place | None, int | None, str]:
    """The setting where it is written, else where the model is made."""
    made = the_model(case)
    name = case.run.target.name if case.run is not None else ""
    for file in [made.file if made is not None else "", name]:
        source = case.sources.get(file) if file else None
        if source is not None and (line := _setting(source)) is not None:
            place = Place(
                file=as_traced(case, file), line=line, function=source.function_name(line)
            )
            return place, line, SETTING
    if made is not None:
        place = Place(file=made.file, line=made.line, function=made.function)
        return place, made.line, f"{SETTING}\n{made.text}"
    return None, None, SETTING


def _setting(source: SourceFile) -> int | None:
    lines = [i for i, text in enumerate(source.lines, 1) if "cudnn.benchmark" in text]
    return next((i for i in lines if "=" in source.line(i)), None)
