"""Gradients are clipped, or their norm is taken, one parameter at a time."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, of_step
from ridgeline.diagnosis.rules._launch import MIN_SHARE, Loop, cost, loops, parameters
from ridgeline.records.finding import Finding
from ridgeline.source.calls import calls_at
from ridgeline.source.loops import loops_at
from ridgeline.source.vectorized import clamped_to, limit_of, parameters_of

RULE = Rule(id="clip-by-tensor", family="launch", budget="overhead", needs=("sites", "stacks"))

CPU_CALLS_PER_PARAMETER = 2
"""Calls for each parameter that torch's own function makes on a CPU: a norm and a product. For 130
parameters they take 1.2 ms of the 2.4 ms of a loop with five calls each."""
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")
_CLAMPS = frozenset({"clamp", "clamp_"})
_NORMING = frozenset({"norm", "vector_norm", "square", "pow", "sum", "abs", "clamp_", "clamp"})


def look(case: Case) -> Iterator[Finding]:
    for loop in loops(case):
        if loop.over != "gradients":
            continue
        saved = 1.0
        if not case.on_gpu and loop.calls:  # `clip_grad_norm_` goes through the gradients too
            saved = max(1 - CPU_CALLS_PER_PARAMETER * parameters(case) / loop.calls, 0.0)
        share = cost(case, loop.sites) * saved
        if share >= MIN_SHARE:
            yield _finding(case, loop, share)


def _finding(case: Case, loop: Loop, share: float) -> Finding:
    line, change = _in_source(case, loop)
    calls = units.count(round(loop.calls))
    text = f"{calls} for {round(parameters(case))} parameters: {', '.join(loop.ops[:4])}"
    return make_finding(
        RULE,
        claim=f"{loop.name} goes through the gradients one tensor at a "
        f"time: {calls} operator calls a step",
        share=share,
        evidence=[measured("calls a step", text, loop.calls), of_step("time", share)],
        place=loop.place,
        line=line,
        change=change,
        confidence="high" if line is not None else "medium",
    )


def _in_source(case: Case, loop: Loop) -> tuple[int | None, str]:
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
