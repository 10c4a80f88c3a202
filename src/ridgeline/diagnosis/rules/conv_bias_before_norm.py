"""A convolution's bias right before a batch norm."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import (
    Rule,
    gain_without,
    make_finding,
    measured,
    work_time,
)
from ridgeline.records.finding import Finding
from ridgeline.records.sites import NormedConv
from ridgeline.records.trace import Place
from ridgeline.source.calls import with_argument
from ridgeline.source.layers import Layer, layers

MIN_SHARE = 0.01
_KINDS = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
_BIAS_POSITION = 7
"""Position of `bias` among the arguments of a convolution, transposed or not."""

RULE = Rule(id="conv-bias-before-norm", family="kernels", budget="work", needs=("sites",))


def look(case: Case) -> Iterator[Finding]:
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
    if share < MIN_SHARE:
        return
    place, made = _made(case, normed)
    calls = round(sum(conv.calls for conv in normed))
    yield make_finding(
        RULE,
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
