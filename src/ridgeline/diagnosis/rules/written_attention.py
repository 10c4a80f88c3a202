"""Attention written out, where one fused operator would do."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured
from ridgeline.diagnosis.rules._operators import (
    PRODUCTS,
    SOFTMAX,
    Scores,
    most_gained,
    peak_bytes,
    saved_bytes,
    score_products,
    scores_of,
    spent_ns,
    without_scores,
)
from ridgeline.records.finding import Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.calls import calls_at, with_argument
from ridgeline.source.layers import find_written_attention, layers

MIN_SHARE = 0.01
MIN_MEMORY_SHARE = 0.05
MIN_MODULE_SHARE = 0.1
"""Share of the step inside nn.MultiheadAttention, whose default is to ask for the weights."""
MIN_SOFTMAX_SHARE = 0.1
"""Time of the softmax as a share of the products' time. A softmax over scores takes as long as the
products that make and read them (9.4 ms against 7.1 ms); one that chooses among experts, with two
products each, takes hundredths."""
_TORCHS = ("scaled_dot_product", "_native_multi_head_attention", "_transformer_encoder_layer_fwd")
"""Operators of torch that contain attention: nobody wrote out what they do inside."""
GENERIC = "out = F.scaled_dot_product_attention(q, k, v)  # is_causal=True, attn_mask=, dropout_p="

RULE = Rule(id="written-attention", family="kernels", budget="work", needs=("sites",))


def look(case: Case) -> Iterator[Finding]:
    if not case.sites.shapes:
        yield from _unshaped(case)
        return
    sites = [s for s in case.sites.ops if not _fused(s)]
    by_place: dict[tuple[str, str], list[tuple[OpSite, Scores]]] = {}
    for site in sites:
        scores = scores_of(site.dims[0]) if site.op in SOFTMAX and site.dims else None
        if scores is not None and not site.inside("Backward"):
            file, function = (site.place.file, site.place.function) if site.place else ("", "")
            by_place.setdefault((file, function), []).append((site, scores))
    for group in by_place.values():
        yield from _group(case, sites, group)


def _group(
    case: Case, sites: list[OpSite], group: list[tuple[OpSite, Scores]]
) -> Iterator[Finding]:
    place = group[0][0].place
    near = [s for s in sites if s.phase != "optimizer" and _same(s.place, place)]
    touching: list[OpSite] = []
    saved = 0.0
    kept = []
    for scores in dict.fromkeys(scores for _, scores in group):
        made, read = score_products(near, scores)
        if made and read:
            here = [s for s in near if scores.touched(s)]
            touching += [s for s in here if not any(s is other for other in touching)]
            saved += saved_bytes(here, scores)
            kept.append(scores)
    if not touching:
        return
    share, peak = without_scores(case, touching), peak_bytes(case)
    memory = saved / peak if peak else 0.0
    if share < MIN_SHARE and memory < MIN_MEMORY_SHARE:
        return
    softmax = [s for s in touching if s.op in SOFTMAX]
    if "MultiheadAttention" in softmax[0].module and share < MIN_MODULE_SHARE:
        return
    calls = sum(s.calls for s in softmax)
    passes = round(sum(s.calls for s in touching if s.bytes))
    line, change, doubt = _text(case, place, softmax[0].module)
    largest = max(kept, key=lambda scores: scores.numel)
    sizes = f"{largest.batch} × {largest.rows} × {largest.columns}"
    spent = spent_ns(case, touching)
    text = f"{units.seconds(case.work_s(spent))} a step; beyond what a fused kernel needs, "
    text += f"{units.percent(share)} of it"
    of_peak = f", {units.percent(memory)} of the peak" if peak else ""
    kept_text = f"{units.bytes_(saved)}{of_peak}"
    yield make_finding(
        RULE,
        claim=f"attention is written out: its scores pass through memory in "
        f"{units.plural(passes, 'operator')} a step, where one fused operator would keep them on "
        "the chip",
        share=share,
        bound=most_gained(case, touching),
        place=place,
        line=line,
        module=softmax[0].module,
        memory=memory,
        fix="sdpa",
        change=change,
        confidence="high" if line is not None and not doubt else "medium",
        doubt=doubt,
        evidence=(
            measured("operators on the scores", text, 1e3 * case.work_s(spent)),
            measured("scores", f"{sizes}, {units.significant(calls)} a step"),
            *([derived("kept for the backward", kept_text, saved)] if saved else ()),
        ),
    )


def _text(case: Case, place: Place | None, module: str) -> tuple[int | None, str, str]:
    """Return the line, the change, and the doubt about it."""
    written = find_written_attention(case.sources, place)
    if written is not None and written.dropout and not case.on_gpu and written.call:
        call, _, _ = written.call.partition(", dropout_p=")
        after = f"F.dropout({written.out or 'out'}, {written.dropout}, self.training)"
        change = f"{call})\n{written.out or 'out'} = {after}"
        return written.line, change, "on a CPU no fused kernel drops weights: drop the result"
    if written is not None:
        return written.line, written.call or GENERIC, ""
    if "MultiheadAttention" in module:
        return *_multihead(case, place), ""
    return None, GENERIC, ""


def _multihead(case: Case, place: Place | None) -> tuple[int | None, str]:
    source = case.sources.get(place.file) if place is not None else None
    made = layers(source, ("MultiheadAttention",)) if source is not None else ()
    for call in calls_at(case.sources, place, {layer.name for layer in made if layer.name}):
        if "need_weights" not in call.keywords:
            return call.line, with_argument(call.text, "need_weights=False")
    return None, "out, _ = self.attention(x, x, x, need_weights=False)"


def _unshaped(case: Case) -> Iterator[Finding]:
    """Yield a finding without sizes: one softmax for every two batched products of the forward."""
    sites = [s for s in case.sites.ops if not _fused(s)]
    softmax = [s for s in sites if s.op in SOFTMAX and not s.inside("Backward")]
    whole = [s for s in softmax if not any(op in SOFTMAX for op in s.within)]  # _softmax in softmax
    forward = [s for s in sites if s.op in PRODUCTS[:2] and not s.inside("Backward")]
    calls, pairs = sum(s.calls for s in whole), sum(s.calls for s in forward) / 2
    if not calls or abs(calls - pairs) > 0.01 * calls:
        return
    ahead = sum(s.work_ns for s in forward)
    if sum(s.work_ns for s in softmax) < MIN_SOFTMAX_SHARE * ahead:
        return
    backward = [s for s in sites if s.op in PRODUCTS[:2] and s.inside("Backward")]
    backward += [s for s in sites if s.op == "aten::_softmax_backward_data"]
    share = case.exposed(*softmax, *forward, *backward)
    if share >= MIN_SHARE:
        yield make_finding(
            RULE,
            claim=f"attention is written out: {units.significant(calls)} times a step a softmax "
            "between two batched products",
            share=share,
            place=softmax[0].place,
            module=softmax[0].module,
            fix="sdpa",
            change=f"{GENERIC}\n# in nn.MultiheadAttention: need_weights=False",
            confidence="low",
            doubt="the trace has no sizes: that they belong together is told by their number",
            evidence=(measured("batched products", f"{units.significant(2 * pairs)}"),),
        )


def _fused(site: OpSite) -> bool:
    """Return whether attention is inside an operator of torch, as in nn.TransformerEncoderLayer."""
    return any(name in site.op or site.inside(name) for name in _TORCHS)


def _same(one: Place | None, other: Place | None) -> bool:
    """Return whether two places may be the same. Backward operators that the trace does not join to
    a forward have no place."""
    if one is None or other is None:
        return True
    return (one.file, one.function) == (other.file, other.function)
