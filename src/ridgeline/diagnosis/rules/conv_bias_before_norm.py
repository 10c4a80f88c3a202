"""A convolution's bias right before a batch norm."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import MAX_SHARE, SHARE_TOLERANCE, Rule, make_finding
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import NormedConv
from ridgeline.records.trace import Place
from ridgeline.source.calls import with_argument
from ridgeline.source.layers import Layer, layers

LEAST = 0.01
_KINDS = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
_BIAS = 7
"""Position of `bias` among a convolution's arguments; of a transposed one it is 7 too."""

RULE = Rule(id="conv-bias-before-norm", family="kernels", budget="work", needs=("sites",))


def look(case: Case) -> Iterator[Finding]:
    by_place: dict[tuple[str, str], list[NormedConv]] = {}
    for one in case.sites.normed:
        key = (one.place.file, one.place.function) if one.place else ("", "")
        by_place.setdefault(key, []).append(one)
    for normed in by_place.values():
        yield from _of_place(case, normed)


def _of_place(case: Case, normed: list[NormedConv]) -> Iterator[Finding]:
    adding = sum(one.add_ns for one in normed)
    summing = sum(one.gradient_ns for one in normed)
    share = _share(case, adding + summing, sum(one.exposed_ns for one in normed))
    if share < LEAST:
        return
    place, made = _made(case, normed)
    calls = round(sum(one.calls for one in normed))
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
            Evidence(
                what="adding the bias", text=f"{units.seconds(case.work_s(adding))} a step",
                value=1e3 * case.work_s(adding),
            ),
            Evidence(
                what="summing its gradient", text=f"{units.seconds(case.work_s(summing))} a step",
                value=1e3 * case.work_s(summing),
            ),
            Evidence(what="next operator", text="a training batch norm, each time"),
        ),
    )  # fmt: skip


def _share(case: Case, ns: float, exposed: float) -> float:
    if not case.on_gpu:
        return case.host_share(ns)
    whole = case.device_share(ns)
    if (case.busy or 0.0) >= SATURATED:
        return whole
    return min(whole, case.device_share(exposed))


def _bound(case: Case, share: float) -> float:
    """With each kernel its part of the gaps between kernels goes, on a GPU that has no others."""
    busy = case.busy or 1.0
    goes = share / busy if case.on_gpu and busy >= SATURATED else share
    return 1 / (1 - min(goes * (1 + SHARE_TOLERANCE), MAX_SHARE))


def _made(case: Case, normed: Sequence[NormedConv]) -> tuple[Place | None, list[Layer]]:
    """Where these convolutions are made, with a bias: in the class of the innermost module around
    them that makes any, else in the file."""
    place = normed[0].place
    source = case.sources.get(place.file) if place is not None else None
    if source is None or place is None:
        return place, []
    made = [one for one in layers(source, _KINDS) if one.given("bias", _BIAS) in ("", "True")]
    *parents, kind = [part.rpartition("_")[0] for part in normed[0].module.split(" / ")]
    for owner in reversed(parents):
        owned = [layer for layer in made if (layer.owner, layer.kind) == (owner, kind)]
        if owned:  # as many as one module of that class has before norms
            around = normed[0].module.rpartition(" / ")[0]
            alike = sum(one.module.rpartition(" / ")[0] == around for one in normed)
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
