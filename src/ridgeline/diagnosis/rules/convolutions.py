"""Convolutions: algorithms searched for again and again, layouts turned, and a needless bias."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import (
    Rule,
    gain_without,
    make_finding,
    measured,
    read,
    work_time,
)
from ridgeline.diagnosis.rules._operators import (
    KERNELS,
    convolutions,
    exposed_part,
    needed_ns,
    the_model,
)
from ridgeline.diagnosis.rules._user_code import as_traced, channels_last, fix_code, located
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import NormedConv, OpSite
from ridgeline.records.trace import KernelRow, Place
from ridgeline.source.calls import with_argument
from ridgeline.source.layers import Layer, layers
from ridgeline.source.models import ModelMade, with_memory_format

MIN_AUTOTUNE_SHARE = 0.02
LAUNCH_NS = 200_000
"""A convolution that takes the host longer did more than launch: launching takes 10 to 50 µs,
trying ten kernels takes milliseconds."""
MIN_NEW_SIZES = 0.5
"""Share of the sizes of convolutions that were seen in one traced step alone."""
MIN_TRIED_KERNELS = 4
"""Kernels a call from which the autotuner is taken to be at work."""
OFF = "torch.backends.cudnn.benchmark = False"

AUTOTUNE_THRASH = Rule(
    id="autotune-thrash", family="kernels", budget="overhead", needs=("sites", "shapes", "gpu")
)


def autotune_thrash(case: Case) -> Iterator[Finding]:
    """cuDNN's autotuner, trying kernels again for every new shape."""
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
    if share < MIN_AUTOTUNE_SHARE:
        return
    # Each kernel tried wants a workspace of its own from the driver.
    asked = case.traced_memory.segments.host_ns if case.traced_memory is not None else 0.0
    place = _switch(case)
    text = f"{units.seconds(spent / calls / 1e9)} traced, {units.significant(calls)} a step"
    yield make_finding(
        AUTOTUNE_THRASH,
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


MIN_LAYOUT_SHARE = 0.01
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
LAYOUT_TRANSPOSES = Rule(
    id="layout-transposes", family="kernels", budget="work", needs=("trace", "gpu")
)


def layout_transposes(case: Case) -> Iterator[Finding]:
    """Convolutions that turn their tensors from NCHW to NHWC and back."""
    turning = [row for row in case.kernels if _TURNING.search(row.name)]
    rows = [row for row in turning if not row.op or "conv" in row.op]
    steps = max(case.study.window.steps if case.study is not None else 1, 1)
    turned = sum(row.total_ns for row in rows) / steps
    sites = convolutions(case)
    part = exposed_part(case, sites) if sites else 1.0
    if case.device_share(turned) * part < MIN_LAYOUT_SHARE:
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
        LAYOUT_TRANSPOSES,
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


MIN_BIAS_SHARE = 0.01
_KINDS = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
_BIAS_POSITION = 7
"""Position of `bias` among the arguments of a convolution, transposed or not."""

CONV_BIAS_BEFORE_NORM = Rule(
    id="conv-bias-before-norm", family="kernels", budget="work", needs=("sites",)
)


def conv_bias_before_norm(case: Case) -> Iterator[Finding]:
    """A convolution's bias right before a batch norm."""
    by_function: dict[tuple[str, str], list[NormedConv]] = {}
    for conv in case.sites.normed:
        key = (conv.place.file, conv.place.function) if conv.place else ("", "")
        by_function.setdefault(key, []).append(conv)
    for normed in by_function.values():
        yield from _of_function(case, normed)


def _of_function(case: Case, normed: list[NormedConv]) -> Iterator[Finding]:
    adding = sum(conv.add_ns for conv in normed)
    summing = sum(conv.gradient_ns for conv in normed)
    share = _share(case, adding + summing, sum(conv.exposed_ns for conv in normed))
    if share < MIN_BIAS_SHARE:
        return
    place, made = _made(case, normed)
    calls = round(sum(conv.calls for conv in normed))
    yield make_finding(
        CONV_BIAS_BEFORE_NORM,
        claim=f"{units.plural(calls, 'convolution')} a step add a bias that the batch norm right "
        "behind takes away again",
        share=share,
        bound=_bound(case, share),
        place=place,
        line=made[0].line if made else None,
        module=normed[0].module,
        change="\n".join(_changed(layer) for layer in made[:3]) or "nn.Conv2d(…, bias=False)",
        confidence="high" if made else "medium",
        evidence=(
            work_time(case, "adding the bias", adding),
            work_time(case, "summing its gradient", summing),
            measured("next operator", "a training batch norm, each time"),
        ),
    )


def _share(case: Case, ns: float, exposed: float) -> float:
    if not case.on_gpu:
        return case.host_share(ns)
    whole = case.device_share(ns)
    if (case.busy or 0.0) >= SATURATED:
        return whole
    return min(whole, case.device_share(exposed))


def _bound(case: Case, share: float) -> float:
    """Return the bound. On a GPU that has no other gaps, each kernel goes with its part of the gaps
    between kernels."""
    busy = case.busy or 1.0
    goes = share / busy if case.on_gpu and busy >= SATURATED else share
    return gain_without(goes)


def _made(case: Case, normed: Sequence[NormedConv]) -> tuple[Place | None, list[Layer]]:
    """Return where these convolutions are made with a bias: in the class of the innermost module
    around them that makes any, else in the file."""
    place = normed[0].place
    source = case.sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return place, []
    made = [
        layer
        for layer in layers(source, _KINDS)
        if layer.given("bias", _BIAS_POSITION) in ("", "True")
    ]
    *parents, kind = [part.rpartition("_")[0] for part in normed[0].module.split(" / ")]
    for owner in reversed(parents):
        owned = [layer for layer in made if (layer.owner, layer.kind) == (owner, kind)]
        if owned:  # as many as one module of that class has before norms
            around = normed[0].module.rpartition(" / ")[0]
            alike = sum(conv.module.rpartition(" / ")[0] == around for conv in normed)
            made = owned[:alike]
            break
    if not made:
        return place, []
    return Place(file=place.file, line=made[0].line, function=made[0].function), made


def _changed(layer: Layer) -> str:
    text = layer.text.replace("bias=True", "bias=False")
    if text == layer.text:
        text = with_argument(text, "bias=False")
    return f"self.{layer.name} = {text}" if layer.name else text
