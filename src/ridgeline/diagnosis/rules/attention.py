"""Attention that runs on its slow path, or is written out."""

import ast
from collections.abc import Iterator

from msgspec import Struct

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
from ridgeline.diagnosis.rules._user_code import source_of
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.finding import Source as FactSource
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.calls import (
    SourceCall,
    all_calls,
    calls_at,
    start_of_statement,
    with_argument,
)
from ridgeline.source.file import parsed_expression
from ridgeline.source.layers import find_written_attention, layers

MIN_SHARE = 0.01
MIN_MEMORY_SHARE = 0.05
MIN_LIBRARY_SHARE = 0.3
"""Share of the step for dropout inside a library's layer on a CPU. Dropout is torch's own default,
and without it the model is another."""
MAX_HEAD_SIZE = 256
"""Largest head that flash kernels take."""
MATH = "_scaled_dot_product_attention_math"
_CALL = ("scaled_dot_product_attention",)
_SWITCHES = ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp")

SDPA_MATH_PATH = Rule(id="sdpa-math-path", family="kernels", budget="work", needs=("sites",))


def sdpa_math_path(case: Case) -> Iterator[Finding]:
    """scaled_dot_product_attention that no fused kernel took."""
    fell = [s for s in case.sites.ops if s.op.endswith(MATH)]
    by_place: dict[tuple[str, str], list[OpSite]] = {}
    for site in fell:
        key = (site.place.file, site.place.function) if site.place else ("", "")
        by_place.setdefault(key, []).append(site)
    for calls in by_place.values():
        yield from _sdpa_group(case, calls)


def _sdpa_group(case: Case, calls: list[OpSite]) -> Iterator[Finding]:
    place = calls[0].place
    key = (place.file, place.function) if place else None
    near = [
        s for s in case.sites.ops
        if s.phase != "optimizer"
        and (key is None or s.place is None or (s.place.file, s.place.function) == key)
    ]  # fmt: skip
    shapes = dict.fromkeys(scores for site in calls if (scores := _scores(site)) is not None)
    inside = [s for s in near if s.inside(MATH) or s.op.endswith(MATH)]
    touching = inside + [
        s for s in near
        if not s.inside(MATH) and s.inside("Backward") and any(sc.touched(s) for sc in shapes)
    ]  # fmt: skip
    share, peak = without_scores(case, touching), peak_bytes(case)
    saved = sum(saved_bytes(touching, scores) for scores in shapes)
    memory = saved / peak if peak else 0.0
    if share < MIN_SHARE and memory < MIN_MEMORY_SHARE:
        return
    reason = _from_inputs(case, calls[0]) or _from_settings(case, calls[0])
    at = calls_at(case.sources, place, _CALL)
    line = at[0].line if at else None
    changes = reason is not None and reason.changes_results
    if changes and not at and share < MIN_LIBRARY_SHARE:
        return
    yield make_finding(
        SDPA_MATH_PATH,
        claim="scaled_dot_product_attention runs as plain operators, not as a fused kernel"
        + (f": {reason.text}" if reason else ""),
        share=share,
        bound=most_gained(case, touching),
        place=place,
        line=line,
        module=calls[0].module,
        memory=memory,
        change=reason.change if reason else _ASK,
        confidence="high" if reason and not changes else "medium",
        doubt=_doubt(reason),
        evidence=tuple(_evidence(case, calls, touching, reason, saved)),
    )


class _Cause(Struct, frozen=True, kw_only=True):
    """Says why no fused kernel takes the inputs, and what to write instead."""

    text: str
    change: str
    source: FactSource = "measured"
    changes_results: bool = False


def _from_inputs(case: Case, site: OpSite) -> _Cause | None:
    q, k, v = _names(case, site)
    sizes = [dims for dims in site.dims[:3] if dims]
    if len(sizes) < 3:
        return None
    dropout = _number(site, 4)
    begin = _start(case, site)
    if not case.on_gpu and dropout:
        return _Cause(
            text=f"the CPU's fused kernel has no dropout, and dropout_p is {dropout:g}",
            change=_dropped_after(case, site, f"{dropout:g}"),
            changes_results=True,
        )
    if "double" in site.types[:3]:
        if case.on_gpu:
            return _Cause(
                text="its inputs are float64",
                change=f"{q}, {k}, {v} = {q}.float(), {k}.float(), {v}.float()",
            )
    elif len(set(site.types[:3])) > 1:
        return _Cause(
            text=f"its inputs have different types, {', '.join(sorted(set(site.types[:3])))}",
            change=f"{k}, {v} = {k}.to({q}.dtype), {v}.to({q}.dtype)",
        )
    if any(len(dims) != 4 for dims in sizes):
        return _Cause(
            text=f"its inputs have {len(sizes[0])} dimensions, fused kernels take 4",
            change=f"{begin}F.scaled_dot_product_attention({q}[:, None], "
            f"{k}[:, None], {v}[:, None])[:, 0]",
        )
    strides = [s for s in site.strides[:3] if s]
    if any(s[-1] != 1 for s in strides):
        return _Cause(
            text=f"the last dimension is not contiguous (stride {strides[0][-1]})",
            change=f"{q}, {k}, {v} = {q}.contiguous(), {k}.contiguous(), {v}.contiguous()",
        )
    if sizes[0][-1] != sizes[2][-1]:
        return _Cause(
            text=f"the heads' sizes differ: {sizes[0][-1]} of the query, {sizes[2][-1]} of the "
            "value",
            change=f"{begin}F.scaled_dot_product_attention({q}, {k}, "
            f"F.pad({v}, (0, {q}.shape[-1] - {v}.shape[-1])))[..., :{v}.shape[-1]]",
        )
    return None


def _from_settings(case: Case, site: OpSite) -> _Cause | None:
    source = source_of(case, site.place)
    for call in all_calls(source, ("sdpa_kernel", *_SWITCHES)) if source is not None else ():
        if (call.name == "sdpa_kernel" and "MATH" in call.argument_names) or _is_off(call):
            return _Cause(
                text=f"`{call.text}` in line {call.line} allows no other",
                change=f"# line {call.line}: without {call.text}",
                source="read",
            )
    if len(site.dims) > 3 and site.dims[3] and case.on_gpu:
        q, k, v = _names(case, site)
        return _Cause(
            text="with this mask no fused kernel takes it",
            change=f"{_start(case, site)}F.scaled_dot_product_attention({q}, {k}, {v}, "
            "is_causal=True)  # where the mask is causal",
        )
    if site.dims and site.dims[0] and case.on_gpu and site.dims[0][-1] > MAX_HEAD_SIZE:
        return _Cause(
            text=f"a head has {site.dims[0][-1]} channels, flash kernels take {MAX_HEAD_SIZE}",
            change="# more heads, each smaller: head size ≤ 256",
        )
    return None


def _is_off(call: SourceCall) -> bool:
    """Return whether the call gives False for anything, as in `enable_flash_sdp(False)`."""
    given = call.node
    values = [*given.args, *(k.value for k in given.keywords)] if given is not None else []
    return any(isinstance(value, ast.Constant) and value.value is False for value in values)


def _names(case: Case, site: OpSite) -> tuple[str, str, str]:
    """Return the program's names of query, key and value."""
    for call in calls_at(case.sources, site.place, _CALL):
        given = call.node.args[:3] if call.node is not None else []
        names = [node.id for node in given if isinstance(node, ast.Name)]
        if len(names) == 3:
            return names[0], names[1], names[2]
    return "q", "k", "v"


def _start(case: Case, site: OpSite) -> str:
    """Return how the program's own statement begins."""
    calls = calls_at(case.sources, site.place, _CALL)
    return start_of_statement(case.sources, calls[0]) if calls else "out = "


def _dropped_after(case: Case, site: OpSite, dropout: str) -> str:
    start, plain = _start(case, site), _without_dropout(case, site)
    name = start.removesuffix(" = ")
    why = "# of its result, not its weights"
    if name != start:
        return f"{start}{plain}\n{start}F.dropout({name}, {dropout}, self.training)  {why}"
    return f"{start}F.dropout({plain}, {dropout}, self.training)  {why}"


def _without_dropout(case: Case, site: OpSite) -> str:
    calls = calls_at(case.sources, site.place, _CALL)
    node = parsed_expression(calls[0].text) if calls else None
    if not isinstance(node, ast.Call):
        return "F.scaled_dot_product_attention(q, k, v)"
    node.keywords = [k for k in node.keywords if k.arg != "dropout_p"]
    return ast.unparse(node)


def _number(site: OpSite, index: int) -> float:
    try:
        return float(site.concrete[index])
    except (IndexError, ValueError):
        return 0.0


def _doubt(reason: _Cause | None) -> str:
    if reason is None:
        return "the recorded inputs do not tell why"
    return "dropping results is another regularisation" if reason.changes_results else ""


_ASK = """# raises, and warns why, where no fused kernel takes the inputs
with torch.nn.attention.sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
    out = F.scaled_dot_product_attention(q, k, v)"""


def _evidence(
    case: Case, calls: list[OpSite], touching: list[OpSite], reason: _Cause | None, saved: float
) -> Iterator[Evidence]:
    spent = spent_ns(case, touching)
    number = units.significant(sum(site.calls for site in calls))
    seconds = units.seconds(case.work_s(spent))
    text = f"{number} calls a step, {seconds} of it with their backward"
    yield measured("plain attention", text, 1e3 * case.work_s(spent))
    if calls[0].dims:
        text = " · ".join("×".join(map(str, dims)) for dims in calls[0].dims[:3])
        yield measured("query, key, value", f"{text}, {calls[0].types[0]}")
    if reason is not None:
        yield Evidence(what="why", text=reason.text, source=reason.source)
    if saved:
        yield derived("scores kept for the backward", units.bytes_(saved), saved)


def _scores(site: OpSite) -> Scores | None:
    if len(site.dims) < 2 or min(len(site.dims[0]), len(site.dims[1])) < 3:
        return None
    batch = 1
    for size in site.dims[0][:-2]:
        batch *= size
    return Scores(batch, site.dims[0][-2], site.dims[1][-2])


MIN_MODULE_SHARE = 0.1
"""Share of the step inside nn.MultiheadAttention, whose default is to ask for the weights."""
MIN_SOFTMAX_SHARE = 0.1
"""Time of the softmax as a share of the products' time. A softmax over scores takes as long as the
products that make and read them (9.4 ms against 7.1 ms); one that chooses among experts, with two
products each, takes hundredths."""
_TORCHS = ("scaled_dot_product", "_native_multi_head_attention", "_transformer_encoder_layer_fwd")
"""Operators of torch that contain attention: nobody wrote out what they do inside."""
GENERIC = "out = F.scaled_dot_product_attention(q, k, v)  # is_causal=True, attn_mask=, dropout_p="

WRITTEN_ATTENTION = Rule(id="written-attention", family="kernels", budget="work", needs=("sites",))


def written_attention(case: Case) -> Iterator[Finding]:
    """Attention written out, where one fused operator would do."""
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
        yield from _written_group(case, sites, group)


def _written_group(
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
        WRITTEN_ATTENTION,
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
        doubt = (
            "the code drops parts of the result, because no fused operator on a CPU drops weights. "
            "The model trains a little differently"
        )
        return written.line, change, doubt
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
            WRITTEN_ATTENTION,
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
