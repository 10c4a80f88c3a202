"""Convolutions that turn their tensors from NCHW to NHWC and back."""

import re
from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._convolutions import (
    convolutions,
    exposed_part,
    needed_ns,
    the_model,
)
from ridgeline.diagnosis.rules._fix_code import fix_code, model_fix
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.reason_codes import Done
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import KernelRow, Place
from ridgeline.source.models import ModelMade, with_memory_format

LEAST = 0.01
NORM_TIMES = 3.0
"""Times the roofline: the least that norms over NHWC take (measured on an H200: 3 backward, 6
forward). Over NCHW, in bfloat16, 12 to 13 were."""
TURNING = re.compile(
    r"nchw_?(to|2)_?nhwc|nhwc_?(to|2)_?nchw|ncdhw_?(to|2)_?ndhwc|ndhwc_?(to|2)_?ncdhw"
    r"|batched_transpose_\d|transpose_(nchw|nhwc)|tensorTransform", re.IGNORECASE
)  # fmt: skip
"""cuDNN's and MIOpen's kernels that change the order of dimensions."""

_LAST = re.compile(r"channels_last|nhwc", re.IGNORECASE)

RULE = Rule(id="layout-transposes", family="kernels", budget="work", needs=("trace", "gpu"))


def look(case: Case) -> Iterator[Finding]:
    rows = _turning(case)
    steps = max(case.study.window.steps if case.study is not None else 1, 1)
    turned = sum(row.total_ns for row in rows) / steps
    sites = convolutions(case)
    part = exposed_part(case, sites) if sites else 1.0
    if case.device_share(turned) * part < LEAST:
        return
    norms = _norms(case)
    beyond = _beyond(case, norms)
    share = case.device_share(turned + beyond) * part
    made = the_model(case)
    volumes = any(len(d) == 5 for site in sites for d in site.dims[:1] if isinstance(d, list))
    most = turned + beyond + _slow(case, sites, turned)
    form = "channels_last_3d" if volumes else "channels_last"
    fix = model_fix(case, "channels-last", Done.CHANNELS_LAST, memory_format=form, images=True)
    place = _place(made, sites)
    number = sum(row.count for row in rows) / steps
    confirmed = made is not None and "channels_last" not in made.text
    yield make_finding(
        RULE,
        claim=f"convolutions turn their tensors to NHWC and back {units.significant(number)} times "
        f"a step: {units.seconds(turned / 1e9)}{_also(beyond)}",
        share=share,
        bound=1 / (1 - min(max(case.device_share(most) * part, share), 0.9)),
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


def _turning(case: Case) -> list[KernelRow]:
    return [k for k in case.kernels if TURNING.search(k.name) and (not k.op or "conv" in k.op)]


def _also(beyond: float) -> str:
    more = units.seconds(beyond / 1e9)
    return f", and batch norms take {more} more over NCHW" if beyond else ""


def _slow(case: Case, sites: list[OpSite], turned: float) -> float:
    """What convolutions that turn nothing take beyond what NHWC ones may need: for the bound only.
    Those that turn have NHWC kernels already."""
    turn = [k.ns for s in sites for k in s.kernels if TURNING.search(k.name)]
    own = [s for s in sites if not any(TURNING.search(k.name) for k in s.kernels)]
    excess = sum(max(s.device_ns - n, 0.0) for s in own if (n := needed_ns(case, s)))
    unseen = max(turned - sum(turn), 0.0)  # of sites whose kernels are not listed
    return max(excess - unseen, 0.0)


def _norms(case: Case) -> list[OpSite]:
    """Batch norms whose kernels are not those for NHWC."""
    return [
        site
        for site in case.sites.ops
        if "batch_norm" in site.op
        and site.kernels
        and not any(_LAST.search(kernel.name) for kernel in site.kernels)
    ]


def _beyond(case: Case, norms: list[OpSite]) -> float:
    excess = [s.device_ns - NORM_TIMES * n for s in norms if (n := needed_ns(case, s))]
    return sum(max(ns, 0.0) for ns in excess)


def _of_norms(norms: list[OpSite], beyond: float) -> tuple[Evidence, ...]:
    if not beyond:
        return ()
    spent = sum(site.device_ns for site in norms)
    return (
        Evidence(
            what="batch norms over NCHW", value=spent / 1e6,
            text=f"{units.seconds(spent / 1e9)} a step, {units.seconds(beyond / 1e9)} of it beyond "
            "what those over NHWC take: in the share too",
        ),
    )  # fmt: skip


def _evidence(
    rows: list[KernelRow], sites: list[OpSite], turned: float, steps: int
) -> Iterator[Evidence]:
    spent = sum(site.device_ns for site in sites)
    of = f", {units.percent(turned / spent)} of the convolutions' time" if spent else ""
    yield Evidence(
        what="kernels that turn", text=f"{units.seconds(turned / 1e9)} a step{of}",
        value=turned / 1e6,
    )  # fmt: skip
    for row in rows[:2]:
        name = TURNING.search(row.name)
        yield Evidence(
            what=name.group(0) if name else row.name[:40],
            text=f"{units.significant(row.count / steps)} a step, "
            f"{units.seconds(row.total_ns / steps / 1e9)}",
        )
    kinds = {site.dtype for site in sites if site.dtype}
    if kinds:
        yield Evidence(what="convolutions in", text=", ".join(sorted(kinds)))


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
