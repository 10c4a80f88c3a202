"""A loss over a large vocabulary that holds all logits at once."""

import ast
from collections.abc import Iterator
from math import prod

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured
from ridgeline.diagnosis.rules._operators import TYPE_BYTES, peak_bytes, spent_ns, traced_peak
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.source.calls import SourceCall, calls_at

MIN_WORDS = 4096
"""Classes from which a loss counts as one over a vocabulary. ImageNet has 1,000."""
CHUNK, CHUNK_CPU = 1024, 256
"""Positions at a time. With fewer, the product with the head is inefficient."""
MIN_MEMORY_SHARE, MIN_MEMORY_SHARE_CPU = 0.1, 0.3
"""Share of the peak. A loss in parts is more code, so it must save more than a trifle; the memory
of a host is seldom what limits."""
_NAMES = {"double": "float64", "float": "float32", "c10::Half": "float16",
          "c10::BFloat16": "bfloat16"}  # fmt: skip
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm")
_LOSSES = ("cross_entropy", "log_softmax", "nll_loss", "CrossEntropyLoss", "criterion", "loss_fn",
           "loss_function", "loss")  # fmt: skip
_CASTS = ("aten::copy_", "aten::_to_copy", "aten::to")
_CODE_BYTES = {"5": 2, "6": 4, "7": 8, "15": 2}
"""Bytes by torch's number of a type: half, float, double, bfloat16."""

RULE = Rule(id="huge-logits", family="memory", budget="memory", needs=("sites", "shapes"))


def look(case: Case) -> Iterator[Finding]:
    known = peak_bytes(case)
    peak = known or traced_peak(case, "cpu")
    forward = [
        s for s in case.sites.ops if s.op in ("aten::log_softmax", "aten::_log_softmax") and s.dims
    ]
    trained = any(s.op == "aten::_log_softmax_backward_data" for s in case.sites.ops)
    large = [s for s in forward if _words(s) >= MIN_WORDS]
    if not peak or not trained or not large:
        return
    site = max(large, key=lambda s: prod(s.dims[0]))
    one = prod(site.dims[0]) * _bytes(site)
    positions = prod(site.dims[0]) // _words(site)
    held = _held(case, site)
    chunk = CHUNK if case.on_gpu else CHUNK_CPU
    memory = held * max(1 - chunk / positions, 0.0) / peak
    if memory < (MIN_MEMORY_SHARE if case.on_gpu else MIN_MEMORY_SHARE_CPU):
        return
    casts = [s for s in case.sites.ops if s.op in _CASTS and _is(s, site)]
    called = calls_at(case.sources, site.place, _LOSSES)
    yield make_finding(
        RULE,
        claim=f"the logits of {positions:,} positions × {_words(site):,} words take "
        f"{units.bytes_(one)}, and the loss holds {units.bytes_(held)} of them and their gradients "
        "at once",
        share=0.0,  # in parts the loss takes longer
        memory=memory,
        place=site.place,
        line=called[0].line if called else None,
        module=site.module,
        fix="chunked-cross-entropy",
        change=_change(called[0] if called else None, chunk),
        confidence="high" if called and known else "medium",
        doubt="in parts the step becomes longer: the backward computes the logits again"
        + ("" if known else "; the trace counts memory from its own beginning"),
        evidence=(
            derived(
                "held by the loss", f"{units.bytes_(held)} of a peak of {units.bytes_(peak)}", held
            ),
            measured("logits", f"{positions:,} × {_words(site):,}, {_type(site)}"),
            *_again(case, site),
            *_upcast(case, casts),
        ),
    )


def _bytes(site: OpSite) -> int:
    """Return the bytes of an element of the log-softmax: of the type it was asked for, else of its
    input's."""
    asked = site.concrete[2] if len(site.concrete) > 2 else ""
    return _CODE_BYTES.get(asked, TYPE_BYTES.get(site.types[0], 4))


def _held(case: Case, site: OpSite) -> float:
    """Return what lives at once in the backward: the log-softmax, its gradient and that of the
    logits. If the loss wants another type: the log-softmax, its copy and the copy's gradient."""
    own, size = _bytes(site), prod(site.dims[0])
    for other in case.sites.ops:
        if other.op == "aten::nll_loss_backward" and _is(other, site):
            copied = TYPE_BYTES.get(other.types[1], own)
            return float(size * (own + 2 * copied if copied != own else 3 * own))
    return float(size * 3 * own)


def _type(site: OpSite) -> str:
    """Return the type in torch's own word: bfloat16, not the C++ class."""
    told = site.types[0] if site.types else ""
    return _NAMES.get(told, told.removeprefix("c10::").lower())


def _again(case: Case, site: OpSite) -> tuple[Evidence, ...]:
    """Return the head's product, which the backward of a loss in parts computes once more."""
    words = _words(site)
    heads = [
        s.device_ns if case.on_gpu else s.host_ns
        for s in case.sites.ops
        if s.op in _PRODUCTS and s.phase == "forward" and any(words in _flat(d) for d in s.dims)
    ]
    if not any(heads):
        return ()
    spent = case.work_s(max(heads))
    text = f"{units.seconds(spent)} a step for the head's product alone"
    return (measured("computed again", text, 1e3 * spent),)


def _upcast(case: Case, casts: list[OpSite]) -> tuple[Evidence, ...]:
    spent = spent_ns(case, casts)
    text = units.seconds(case.work_s(spent))
    return (measured("copies of them to another type", text),) if spent else ()


def _words(site: OpSite) -> int:
    """Return the size of the dimension that the softmax is over."""
    dims = site.dims[0]
    try:
        axis = int(site.concrete[1])
    except (IndexError, ValueError):
        axis = -1
    return int(dims[axis]) if dims and -len(dims) <= axis < len(dims) else 0


def _is(one: OpSite, site: OpSite) -> bool:
    return any(dims and prod(_flat(dims)) == prod(site.dims[0]) for dims in one.dims)


def _flat(dims: object) -> list[int]:
    return [d for d in dims if isinstance(d, int)] if isinstance(dims, list | tuple) else []


def _change(call: SourceCall | None, chunk: int) -> str:
    """Return the loss in parts with the program's own head, hidden state and targets, if the call
    shows them."""
    head, hidden, targets = "head", "hidden", "targets"
    node = call.node if call is not None else None
    if node is not None and len(node.args) >= 2:
        first, second = node.args[0], node.args[1]
        if isinstance(second, ast.Name | ast.Attribute):
            targets = ast.unparse(second)
        if isinstance(first, ast.Call) and len(first.args) == 1:
            head, hidden = ast.unparse(first.func), ast.unparse(first.args[0])
    return (
        "def part(h, t):\n"
        f'    return F.cross_entropy({head}(h), t, reduction="sum")\n'
        "loss = sum(\n"
        "    checkpoint(part, h, t, use_reentrant=False)\n"
        f"    for h, t in zip({hidden}.split({chunk}), {targets}.split({chunk}))\n"
        f") / {targets}.numel()"
    )
