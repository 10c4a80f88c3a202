"""Python loops over rows, steps or tensors, where one operator does the work of many."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured, of_step, read
from ridgeline.diagnosis.rules._launch import (
    MIN_SHARE,
    VIEWS,
    Loop,
    cost,
    dims_of,
    kernels,
    loops,
    outer,
    parameters,
)
from ridgeline.records.finding import Confidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.report.plain import function_label
from ridgeline.source.calls import calls_at
from ridgeline.source.loops import SourceLoop, loops_at, loops_calling
from ridgeline.source.vectorized import (
    all_at_once,
    by_row,
    clamped_to,
    for_all_rows,
    limit_of,
    lines_with,
    parameters_of,
    picked,
    whole_sequence,
)

PYTHON_LOOP = Rule(id="python-loop", family="launch", budget="overhead", needs=("sites", "stacks"))

MAX_SMALL_ELEMENTS = 2**18
"""A call on a tensor of at most this many elements is small. That is 1 MiB of float32: a core reads
it in 0.1 ms, the time of 20 calls."""
MAX_THIN_ROWS = 16
"""A product of so few rows with a matrix leaves most of the arithmetic units idle."""
CALL_S = 10e-6
"""What a call costs. A product that takes longer is not small."""
MIN_RECURRENT_TURNS = 32
"""Turns of a loop that each need the turn before. Fewer may be a model's depth."""
MAX_UNSIZED_CALL_NS = 100_000.0
"""A call of an operator whose sizes were not recorded is small up to this time."""
MIN_SAVED_BY_LAYER = 0.1
"""Share of the step that the layer must save before a loop over a recurrent cell is reported. With
a batch of 256 and 256 hidden units, layer and loop take the same time on a CPU."""
TRACED_CALL_NS, KERNEL_NS = 20_000.0, 5_000.0
"""The cost of a traced call on a CPU and of the smallest kernel on a GPU. Time beyond it is work on
the data, which a layer does not save."""
_CELLS = frozenset(
    f"aten::{name}_cell" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu", "_thnn_fused_lstm")
)
MOVES = {"aten::to", "aten::_to_copy", "aten::copy_"}
"""Operators that bring the tensors of a batch to a device or a type one by one. Rules of copies
report them."""
_PAIRS = ("zip", "enumerate", "tqdm")
MIN_LOOP_SHARE = 0.02
MIN_UNSEEN_SHARE = 0.1
"""Share of the step that must be saved if the loop is not found in the source."""


class _Seen(Struct, frozen=True):
    loop: Loop
    at: SourceLoop | None
    layer: bool = False
    """Whether the loop calls a recurrent cell of torch for which there is a layer over the whole
    sequence."""


def python_loop(case: Case) -> Iterator[Finding]:
    """A Python loop over rows, time steps or pieces calls the same small operators again and
    again."""
    kept: dict[tuple[str, int], list[_Seen]] = defaultdict(list)
    for loop in loops(case):
        if loop.over != "data" or _feeds(case, loop) or MOVES.issuperset(loop.ops):
            continue
        at = _loop_in_source(case, loop)
        if at is not None and not _CELLS.isdisjoint(loop.ops) and _layer(case, at):
            if _saved_by_layer(case, loop) >= MIN_SAVED_BY_LAYER:
                kept[at.file, at.line].append(_Seen(loop, at, layer=True))
            continue
        if not _small(case, loop):
            continue
        if at is None and case.sources.get(loop.place.file) is not None:
            continue  # the loop is a library's: nn.Sequential's, over layers that share weights
        if at is not None and (at.over_modules or _rolls_out(loop, at)):
            continue  # a model's depth: each turn has weights of its own
        if at is not None and at.carried and loop.turns < MIN_RECURRENT_TURNS:
            continue
        share = cost(case, _costing(loop, at))
        if share >= (MIN_LOOP_SHARE if at is not None else MIN_UNSEEN_SHARE):
            where = loop.place if at is None else at
            kept[where.file, where.line].append(_Seen(loop, at))
    for seen in kept.values():
        yield _of_one(case, seen)


def _rolls_out(loop: Loop, at: SourceLoop) -> bool:
    """Return whether the turns need the turn before and no single call can replace them: they step
    an environment, or hand on names between statements without a gradient, as a simulation does.
    """
    trained = any(site.phase == "backward" for site in loop.sites)
    return bool(at.state) or (bool(at.carried) and not at.direct and not trained)


def _costing(loop: Loop, at: SourceLoop | None) -> list[OpSite]:
    """Return the sites that cost time. The products of a recurrence stay, whoever runs its loop."""
    recurrent = at is not None and bool(at.carried)
    return [s for s in loop.sites if not (recurrent and s.flops and s.phase != "backward")]


def _of_one(case: Case, seen: list[_Seen]) -> Finding:
    """Return one finding for one loop in the source, from whichever functions its turns call
    operators."""
    first = seen[0]  # it has the most calls
    loop, at = first.loop, first.at
    share = cost(case, [site for found in seen for site in _costing(found.loop, at)])
    bound = None
    if first.layer:
        most, share = share, sum(_saved_by_layer(case, found.loop) for found in seen)
        bound = gain_without(max(most, share))
    whole = replace(
        loop,
        calls=sum(found.loop.calls for found in seen),
        ops=tuple(dict.fromkeys(op for found in seen for op in found.loop.ops)),
        sites=tuple(site for found in seen for site in found.loop.sites),
    )
    return _loop_finding(case, whole, at, share, bound)


def _layer(case: Case, at: SourceLoop) -> str:
    """Return the code with the layer that replaces a loop over a recurrent cell. Return "" if no
    layer can replace it, for example because the input of a turn is made from the turn before."""
    source = case.sources.get(at.file)
    if source is None:
        return ""
    _, over, target, body = at.parts
    return (whole_sequence(source, target, over, body) if target else "") or ""


def _saved_by_layer(case: Case, loop: Loop) -> float:
    """Return the share of the step that a layer over the whole sequence saves: the calls, and the
    Python around them. The products stay, and so does the work of operators on large tensors."""
    sites = [site for site in loop.sites if not site.flops]
    if case.on_gpu:
        stays_ns = sum(max(s.device_ns - KERNEL_NS * kernels([s]), 0.0) for s in sites)
    else:
        stays_ns = sum(max(s.host_ns - TRACED_CALL_NS * s.calls, 0.0) for s in sites)
    return cost(case, sites, stays_ns=stays_ns)


def _loop_finding(
    case: Case, loop: Loop, at: SourceLoop | None, share: float, bound: float | None
) -> Finding:
    many = units.count(round(loop.calls))
    largest = max((s for s in loop.sites if not s.within), key=lambda s: s.host_ns)
    evidence = [
        measured("calls a step", f"{many}: {', '.join(loop.ops[:4])}", loop.calls),
        measured("time", f"{units.percent(share)} of the step, its backward included", share),
    ]
    if sizes := dims_of(largest):
        evidence.append(measured("a call's input", f"{largest.op} of {list(sizes)}"))
    place = loop.place
    if at is not None:
        what = f"for {at.target} in {at.over}" if at.target else f"while {at.over}"
        evidence.append(read("the loop", what))
        place = Place(file=at.file, line=at.line, function=at.function or loop.place.function)
    inside = at in loops_at(case.sources, loop.place)
    confidence: Confidence = "low" if at is None else "high" if inside else "medium"
    return make_finding(
        PYTHON_LOOP,
        claim=f"A Python loop in {_where(loop, at)} calls {_what(loop)}",
        share=share,
        bound=bound,
        evidence=evidence,
        place=place,
        change=_loop_change(case, at),
        confidence=confidence,
        doubt="each turn needs the one before: not all of it can be saved"
        if at is not None and at.carried
        else "",
    )


def _what(loop: Loop) -> str:
    turns, many = units.count(round(loop.turns)), units.count(round(loop.calls))
    if turns == many:
        return f"{loop.ops[0].removeprefix('aten::')} {turns} times a step"
    return f"the same operators {turns} times a step: {many} small calls"


def _where(loop: Loop, at: SourceLoop | None) -> str:
    function = at.function if at is not None else loop.place.function
    return function_label(function, loop.place.file if at is None else at.file)


def _small(case: Case, loop: Loop) -> bool:
    """Return whether most calls are on little data and with little arithmetic."""
    ahead = [s for s in loop.sites if s.phase != "backward"]
    flops: dict[tuple[str, str], float] = defaultdict(float)
    times: dict[tuple[str, str], float] = defaultdict(float)
    for site in ahead:
        flops[outer(site), site.module] += site.flops
        times[outer(site), site.module] += site.calls if not site.within else 0.0
    most = CALL_S * _flop_rate(case)
    small = 0.0
    for site in ahead:
        if site.within or site.op in VIEWS:
            continue
        sizes = dims_of(site)
        elements = prod(sizes) if sizes is not None else 0
        rows = elements / sizes[-1] if sizes and sizes[-1] else 1.0
        key = (site.op, site.module)
        each = flops[key] / times[key] if times[key] else 0.0
        little = elements <= MAX_SMALL_ELEMENTS and (rows <= MAX_THIN_ROWS or each <= most)
        if sizes is None:
            little = site.work_ns <= MAX_UNSIZED_CALL_NS * site.calls
        small += site.calls if little else 0.0
    return small >= loop.calls / 2


def _flop_rate(case: Case) -> float:
    peak = case.device.ceiling("matmul", "float32") if case.device is not None else None
    return peak.value if peak is not None else 1e11


def _feeds(case: Case, loop: Loop) -> bool:
    """Return whether the loop makes the batches. The rules of the input report it."""
    return bool(case.fed.share) and case.fed.function == loop.place.function


def _loop_in_source(case: Case, loop: Loop) -> SourceLoop | None:
    """Return the loop in the function itself, else one around calls of the function."""
    for at in (loops_at(case.sources, loop.place), loops_calling(case.sources, loop.place)):
        kept = [found for found in at if not found.trains and found.works]
        if kept:
            return min(kept, key=lambda found: (*_unlike(found, loop), -found.inner, found.line))
    return None


def _unlike(at: SourceLoop, loop: Loop) -> tuple[bool, bool]:
    """Return whether a loop calls no operator that was seen, and whether it calls nothing."""
    names = {op.removeprefix("aten::") for op in loop.ops}
    return not names & at.calls, not at.calls


def _loop_change(case: Case, at: SourceLoop | None) -> str:
    source = case.sources.get(at.file) if at is not None else None
    if at is None or source is None:
        return "# call the operators once, with a dimension more, instead of in a loop"
    _, over, target, body = at.parts
    if at.carried:
        return _recurrence(at, whole_sequence(source, target, over, body) if target else "")
    if target is None:
        return f"# without `while {at.over}`: give the operators all turns at once"
    safe = by_row(source, target, body)
    rows = picked(target, body) if safe else None
    if rows and (written := for_all_rows(over, target, body)):
        return f"{written}   # without `for {at.target} in {at.over}`: nothing is left to stack"
    if rows:
        said = ", ".join(f"`{row}` becomes `{all_}`" for row, all_ in rows.items())
        return f"# without `for {at.target} in {at.over}`: {said}, and nothing is left to stack"
    if safe and not isinstance(over, ast.Call):
        return f"# without the loop: give all of `{at.over}` where `{at.target}` is given now"
    return _in_words(at, over, lines_with(target, body))


def _recurrence(at: SourceLoop, layer: str | None) -> str:
    if layer:
        return layer
    left = f"take products that need no `{at.carried}` out of the loop"
    if not at.function:
        return f"# put the loop in a function with @torch.compile; {left}"
    return f"@torch.compile  # above `def {at.function}`; {left}"


def _in_words(at: SourceLoop, over: ast.expr, lines: tuple[int, ...]) -> str:
    """Return the advice in words: only the program knows what a line means for all turns."""
    if not lines:
        return f"# without `for {at.target} in {at.over}`: one call, with a dimension more for it"
    where = f"line {lines[0]}" if len(lines) == 1 else "lines " + ", ".join(map(str, lines))
    head = f"# without `for {at.target} in {at.over}`: {where} for all `{at.target}` at once: "
    if isinstance(over, ast.Call) and ast.unparse(over.func) == "range":
        numbers = ast.unparse(over).removeprefix("range")
        return head + (
            f"whole tensors where `{at.target}` picks a row, torch.arange{numbers} where it is a "
            "number (broadcasting, torch.gather)"
        )
    through = (
        over.args if isinstance(over, ast.Call) and ast.unparse(over.func) in _PAIRS else [over]
    )
    every = ", ".join(f"`{ast.unparse(one)}`" for one in through)
    return head + f"give the operators all of {every} (torch.stack of a list), a dimension more"


METRICS_BY_TENSOR = Rule(
    id="metrics-by-tensor", family="launch", budget="overhead", needs=("sites", "stacks")
)

_UPDATES = frozenset({"mul_", "add_", "lerp_", "copy_", "lerp", "sub_", "mul", "add", "update"})


def metrics_by_tensor(case: Case) -> Iterator[Finding]:
    """Averages of weights, or metrics, are updated one tensor at a time."""
    for loop in loops(case):
        at = _metrics_in_source(case, loop) if loop.over == "state" else None
        if loop.over != "state" or (at is not None and "grad" in at.attributes):
            continue  # a loop that uses gradients is an optimizer's update, written by hand
        if (share := cost(case, loop.sites)) >= MIN_SHARE:
            yield _metrics_finding(case, loop, at, share)


def _metrics_finding(case: Case, loop: Loop, at: SourceLoop | None, share: float) -> Finding:
    turns, many = units.count(round(loop.turns)), units.count(round(loop.calls))
    each = "" if turns == many else f": {many} operator calls a step"
    return make_finding(
        METRICS_BY_TENSOR,
        claim=f"{loop.name} updates {turns} tensors{'' if each else ' a step'} one at a time{each}",
        share=share,
        evidence=[
            measured("calls a step", f"{many}: {', '.join(loop.ops[:4])}", loop.calls),
            of_step("time", share),
        ],
        place=loop.place,
        line=at.line if at is not None else None,
        change=_metrics_change(case, at),
        confidence="high" if at is not None else "medium",
    )


def _metrics_in_source(case: Case, loop: Loop) -> SourceLoop | None:
    at = [found for found in loops_at(case.sources, loop.place) if not found.trains]
    updating = [found for found in at if found.calls & _UPDATES]
    return min(updating or at, key=lambda found: (-found.inner, found.line), default=None)


def _metrics_change(case: Case, loop: SourceLoop | None) -> str:
    source = case.sources.get(loop.file) if loop is not None else None
    if loop is not None and source is not None:
        _, over, target, body = loop.parts
        written = all_at_once(over, target, body) if target is not None else ""
        if written:
            return written
    through = f" that `{loop.over}` gives" if loop is not None and loop.target else ""
    return (
        "torch._foreach_lerp_(averages, weights, 1 - decay)  # names to be replaced by your own: "
        f"lists of all tensors{through}, and the average's factor"
    )


CLIP_BY_TENSOR = Rule(
    id="clip-by-tensor", family="launch", budget="overhead", needs=("sites", "stacks")
)

CPU_CALLS_PER_PARAMETER = 2
"""Calls for each parameter that torch's own function makes on a CPU: a norm and a product. For 130
parameters they take 1.2 ms of the 2.4 ms of a loop with five calls each."""
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")
_CLAMPS = frozenset({"clamp", "clamp_"})
_NORMING = frozenset({"norm", "vector_norm", "square", "pow", "sum", "abs", "clamp_", "clamp"})


def clip_by_tensor(case: Case) -> Iterator[Finding]:
    """Gradients are clipped, or their norm is taken, one parameter at a time."""
    for loop in loops(case):
        if loop.over != "gradients":
            continue
        saved = 1.0
        if not case.on_gpu and loop.calls:  # `clip_grad_norm_` goes through the gradients too
            saved = max(1 - CPU_CALLS_PER_PARAMETER * parameters(case) / loop.calls, 0.0)
        share = cost(case, loop.sites) * saved
        if share >= MIN_SHARE:
            yield _clip_finding(case, loop, share)


def _clip_finding(case: Case, loop: Loop, share: float) -> Finding:
    line, change = _clip_in_source(case, loop)
    calls = units.count(round(loop.calls))
    text = f"{calls} for {round(parameters(case))} parameters: {', '.join(loop.ops[:4])}"
    return make_finding(
        CLIP_BY_TENSOR,
        claim=f"{loop.name} goes through the gradients one tensor at a "
        f"time: {calls} operator calls a step",
        share=share,
        evidence=[measured("calls a step", text, loop.calls), of_step("time", share)],
        place=loop.place,
        line=line,
        change=change,
        confidence="high" if line is not None else "medium",
    )


def _clip_in_source(case: Case, loop: Loop) -> tuple[int | None, str]:
    at = [loop_ for loop_ in loops_at(case.sources, loop.place) if not loop_.trains]
    norming = [loop_ for loop_ in at if loop_.calls & _NORMING or loop_.squares]
    calls = calls_at(case.sources, loop.place, _CLIPS)
    if calls and ("foreach" in calls[0].keywords or not norming):
        text = calls[0].without("foreach")
        return calls[0].line, text if calls[0].loops < 2 else _by_norm("", "")
    source = case.sources.get(loop.place.file)
    if not norming or source is None:
        return None, _by_norm("", "")
    first = min(norming, key=lambda loop_: (-loop_.inner, loop_.line))
    parameters_ = parameters_of(source, first.line)
    if first.calls & _CLAMPS and not first.calls & _NORMING - _CLAMPS and not first.squares:
        return first.line, _by_value(parameters_, clamped_to(first.parts.body))
    limit = limit_of(source, first.line, first.node)
    return first.line, _by_norm(parameters_, limit)


def _by_norm(given: str, limit: str) -> str:
    """Return the call of torch's function, with the program's own names where its source shows
    them."""
    most = limit or "max_norm=1.0"
    call = f"norm = torch.nn.utils.clip_grad_norm_({given or 'model.parameters()'}, {most})"
    return f"{call}  # all at once{_chosen(given, limit, 'max_norm')}"


def _by_value(given: str, limit: str) -> str:
    most = limit or "clip_value=1.0"
    call = f"torch.nn.utils.clip_grad_value_({given or 'model.parameters()'}, {most})"
    return f"{call}  # all at once{_chosen(given, limit, 'clip_value')}"


def _chosen(given: str, limit: str, name: str) -> str:
    yours = [word for word, known in (("model", given), (name, limit)) if not known]
    return f"; {' and '.join(yours)}: yours to choose" if yours else ""
