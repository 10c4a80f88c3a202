"""Convolutions that turn their tensors from NCHW to NHWC and back."""

import re
from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._operators import (
    convolutions,
    exposed_part,
    needed_ns,
    the_model,
)
from ridgeline.diagnosis.rules._user_code import channels_last, fix_code
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import KernelRow, Place
from ridgeline.source.models import ModelMade, with_memory_format

MIN_SHARE = 0.01
MIN_NORM_FACTOR = 3.0
"""Time of norms over NHWC, as a multiple of the roofline, at the least: 3 backward and 6 forward on
an H200. Norms over NCHW took 12 to 13 times the roofline in bfloat16."""
MAX_SAVED_SHARE = 0.9
_TURNING = re.compile(
    r"nchw_?(to|2)_?nhwc|nhwc_?(to|2)_?nchw|ncdhw_?(to|2)_?ndhwc|ndhwc_?(to|2)_?ncdhw"
    r"|batched_transpose_\d|transpose_(nchw|nhwc)|tensorTransform", re.IGNORECASE
)  # fmt: skip
"""cuDNN's and MIOpen's kernels that change the order of dimensions."""
_LAST = re.compile(r"channels_last|nhwc", re.IGNORECASE)
RULE = Rule(id="layout-transposes", family="kernels", budget="work", needs=("trace", "gpu"))


def look(case: Case) -> Iterator[Finding]:
    turning = [row for row in case.kernels if _TURNING.search(row.name)]
    rows = [row for row in turning if not row.op or "conv" in row.op]
    steps = max(case.study.window.steps if case.study is not None else 1, 1)
    turned = sum(row.total_ns for row in rows) / steps
    sites = convolutions(case)
    part = exposed_part(case, sites) if sites else 1.0
    if case.device_share(turned) * part < MIN_SHARE:
        return
    norms = _norms(case)
    beyond = _beyond(case, norms)
    share = case.device_share(turned + beyond) * part
    made = the_model(case)
    volumes = any(len(d) == 5 for site in sites for d in site.dims[:1] if isinstance(d, list))
    most = turned + beyond + _slow(case, sites, turned)
    form = "channels_last_3d" if volumes else "channels_last"
    fix = channels_last(case, form)
    place = _place(made, sites)
    more = units.seconds(beyond / 1e9)
    also = f", and batch norms take {more} more over NCHW" if beyond else ""
    number = sum(row.count for row in rows) / steps
    confirmed = made is not None and "channels_last" not in made.text
    yield make_finding(
        RULE,
        claim=f"convolutions turn their tensors to NHWC and back {units.significant(number)} times "
        f"a step: {units.seconds(turned / 1e9)}{also}",
        share=share,
        bound=1 / (1 - min(max(case.device_share(most) * part, share), MAX_SAVED_SHARE)),
        place=place,
        line=made.line if made is not None else None,
        fix="channels-last",
        change=fix_code(case, place, *fix) or _change(made, form),
        confidence="high" if confirmed else "medium",
        evidence=(
            *_evidence(rows, sites, turned, steps),
            *_of_norms(norms, beyond),
        ),
    )


def _slow(case: Case, sites: list[OpSite], turned: float) -> float:
    """Return what convolutions that turn nothing take beyond what they may need over NHWC. It is
    for the bound only: those that turn have NHWC kernels already."""
    turn = [k.ns for s in sites for k in s.kernels if _TURNING.search(k.name)]
    own = [s for s in sites if not any(_TURNING.search(k.name) for k in s.kernels)]
    excess = sum(max(s.device_ns - n, 0.0) for s in own if (n := needed_ns(case, s)))
    unseen = max(turned - sum(turn), 0.0)  # of sites whose kernels are not listed
    return max(excess - unseen, 0.0)


def _norms(case: Case) -> list[OpSite]:
    """Return the batch norms whose kernels are not those for NHWC."""
    return [
        site
        for site in case.sites.ops
        if "batch_norm" in site.op
        and site.kernels
        and not any(_LAST.search(kernel.name) for kernel in site.kernels)
    ]


def _beyond(case: Case, norms: list[OpSite]) -> float:
    excess = [s.device_ns - MIN_NORM_FACTOR * n for s in norms if (n := needed_ns(case, s))]
    return sum(max(ns, 0.0) for ns in excess)


def _of_norms(norms: list[OpSite], beyond: float) -> tuple[Evidence, ...]:
    if not beyond:
        return ()
    spent = sum(site.device_ns for site in norms)
    text = f"{units.seconds(spent / 1e9)} a step, {units.seconds(beyond / 1e9)} of it beyond "
    text += "what those over NHWC take: in the share too"
    return (measured("batch norms over NCHW", text, spent / 1e6),)


def _evidence(
    rows: list[KernelRow], sites: list[OpSite], turned: float, steps: int
) -> Iterator[Evidence]:
    spent = sum(site.device_ns for site in sites)
    of = f", {units.percent(turned / spent)} of the convolutions' time" if spent else ""
    yield measured("kernels that turn", f"{units.seconds(turned / 1e9)} a step{of}", turned / 1e6)
    for row in rows[:2]:
        name = _TURNING.search(row.name)
        text = f"{units.significant(row.count / steps)} a step, "
        text += units.seconds(row.total_ns / steps / 1e9)
        yield measured(name.group(0) if name else row.name[:40], text)
    kinds = {site.dtype for site in sites if site.dtype}
    if kinds:
        yield measured("convolutions in", ", ".join(sorted(kinds)))


def _place(made: ModelMade | None, sites: list[OpSite]) -> Place | None:
    if made is not None:
        return Place(file=made.file, line=made.line, function=made.function)
    return next((site.place for site in sites if site.place is not None), None)


def _change(made: ModelMade | None, form: str) -> str:
    if made is not None:
        return with_memory_format(made, form)
    return (
        f"model = model.to(memory_format=torch.{form})\n"
        f"images = images.to(memory_format=torch.{form})"
    )
