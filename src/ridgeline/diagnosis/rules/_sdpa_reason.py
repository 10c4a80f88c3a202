"""Why no fused kernel took a call of scaled_dot_product_attention: from its recorded inputs, and
the settings in the source."""

import ast

from msgspec import Struct

from ridgeline.diagnosis.case import Case
from ridgeline.records.finding import Source as Told
from ridgeline.records.op_site import OpSite
from ridgeline.source.reading.assigned import begins
from ridgeline.source.reading.calls import all_calls, calls_at

MOST_HEAD = 256
"""Head size flash kernels take."""
_OFF = ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp")


class Reason(Struct, frozen=True, kw_only=True):
    text: str
    change: str
    source: Told = "measured"
    changes_results: bool = False


def why_math(case: Case, site: OpSite) -> Reason | None:
    return _of_inputs(case, site) or _of_settings(case, site)


def _of_inputs(case: Case, site: OpSite) -> Reason | None:
    q, k, v = _names(case, site)
    sizes = [dims for dims in site.dims[:3] if dims]
    if len(sizes) < 3:
        return None
    dropout = _number(site, 4)
    if not case.on_gpu and dropout:
        return Reason(
            text=f"the CPU's fused kernel has no dropout, and dropout_p is {dropout:g}",
            change=_dropped_after(case, site, f"{dropout:g}"),
            changes_results=True,
        )
    if "double" in site.types[:3]:
        if case.on_gpu:
            return Reason(
                text="its inputs are float64",
                change=f"{q}, {k}, {v} = {q}.float(), {k}.float(), {v}.float()",
            )
    elif len(set(site.types[:3])) > 1:
        return Reason(
            text=f"its inputs have different types, {', '.join(sorted(set(site.types[:3])))}",
            change=f"{k}, {v} = {k}.to({q}.dtype), {v}.to({q}.dtype)",
        )
    if any(len(dims) != 4 for dims in sizes):
        ranks = len(sizes[0])
        return Reason(
            text=f"its inputs have {ranks} dimensions, fused kernels take 4",
            change=f"{_begins(case, site)}F.scaled_dot_product_attention({q}[:, None], "
            f"{k}[:, None], {v}[:, None])[:, 0]",
        )
    strides = [s for s in site.strides[:3] if s]
    if any(s[-1] != 1 for s in strides):
        return Reason(
            text=f"the last dimension is not contiguous (stride {strides[0][-1]})",
            change=f"{q}, {k}, {v} = {q}.contiguous(), {k}.contiguous(), {v}.contiguous()",
        )
    if sizes[0][-1] != sizes[2][-1]:
        return Reason(
            text=f"the heads' sizes differ: {sizes[0][-1]} of the query, {sizes[2][-1]} of the "
            "value",
            change=f"{_begins(case, site)}F.scaled_dot_product_attention({q}, {k}, "
            f"F.pad({v}, (0, {q}.shape[-1] - {v}.shape[-1])))[..., :{v}.shape[-1]]",
        )
    return None


def _of_settings(case: Case, site: OpSite) -> Reason | None:
    source = case.sources.get(site.place.file) if site.place is not None else None
    if source is not None:
        for call in all_calls(source, ("sdpa_kernel", *_OFF)):
            if (call.name == "sdpa_kernel" and "MATH" in call.text) or "False" in call.text:
                return Reason(
                    text=f"`{call.text}` in line {call.line} allows no other",
                    change=f"# line {call.line}: without {call.text}", source="read",
                )  # fmt: skip
    if site.dims and len(site.dims) > 3 and site.dims[3] and case.on_gpu:
        q, k, v = _names(case, site)
        return Reason(
            text="with this mask no fused kernel takes it",
            change=f"{_begins(case, site)}F.scaled_dot_product_attention({q}, {k}, {v}, "
            "is_causal=True)"
            "  # where the mask is causal",
        )
    if site.dims and site.dims[0] and case.on_gpu and site.dims[0][-1] > MOST_HEAD:
        return Reason(
            text=f"a head has {site.dims[0][-1]} channels, flash kernels take {MOST_HEAD}",
            change="# more heads, each smaller: head size ≤ 256",
        )
    return None


def _names(case: Case, site: OpSite) -> tuple[str, str, str]:
    calls = calls_at(case.sources, site.place, ("scaled_dot_product_attention",))
    for call in calls:
        inner = call.text[call.text.find("(") + 1 :].rstrip(")")
        parts = [part.strip() for part in inner.split(",")]
        if len(parts) >= 3 and all(part.isidentifier() for part in parts[:3]):
            return parts[0], parts[1], parts[2]
    return "q", "k", "v"


def _begins(case: Case, site: OpSite) -> str:
    """How the program's own statement begins; where the call is a part of one, it is replaced."""
    calls = calls_at(case.sources, site.place, ("scaled_dot_product_attention",))
    return begins(case.sources, calls[0]) if calls else "out = "


def _dropped_after(case: Case, site: OpSite, dropout: str) -> str:
    start, plain = _begins(case, site), _without_dropout(case, site)
    name = start.removesuffix(" = ")
    why = "# of its result, not its weights"
    if name != start:
        return f"{start}{plain}\n{start}F.dropout({name}, {dropout}, self.training)  {why}"
    return f"{start}F.dropout({plain}, {dropout}, self.training)  {why}"


def _without_dropout(case: Case, site: OpSite) -> str:
    calls = calls_at(case.sources, site.place, ("scaled_dot_product_attention",))
    try:
        node = ast.parse(calls[0].text, mode="eval").body if calls else None
    except SyntaxError:
        node = None
    if not isinstance(node, ast.Call):
        return "F.scaled_dot_product_attention(q, k, v)"
    node.keywords = [k for k in node.keywords if k.arg != "dropout_p"]
    return ast.unparse(node)


def _number(site: OpSite, index: int) -> float:
    try:
        return float(site.concrete[index])
    except (IndexError, ValueError):
        return 0.0
