"""scaled_dot_product_attention that no fused kernel took."""

import ast
from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured
from ridgeline.diagnosis.rules._operators import (
    Scores,
    most_gained,
    peak_bytes,
    saved_bytes,
    spent_ns,
    without_scores,
)
from ridgeline.diagnosis.rules._user_code import source_of
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.finding import Source as FactSource
from ridgeline.records.sites import OpSite
from ridgeline.source.calls import SourceCall, all_calls, calls_at, start_of_statement
from ridgeline.source.file import parsed_expression

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

RULE = Rule(id="sdpa-math-path", family="kernels", budget="work", needs=("sites",))


def look(case: Case) -> Iterator[Finding]:
    fell = [s for s in case.sites.ops if s.op.endswith(MATH)]
    by_place: dict[tuple[str, str], list[OpSite]] = {}
    for site in fell:
        key = (site.place.file, site.place.function) if site.place else ("", "")
        by_place.setdefault(key, []).append(site)
    for calls in by_place.values():
        yield from _group(case, calls)


def _group(case: Case, calls: list[OpSite]) -> Iterator[Finding]:
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
        RULE,
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
    """Why no fused kernel takes the inputs, and what to write instead."""

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
