"""Gradients are clipped, or their norm is taken, one parameter at a time."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._launch import LEAST, Loop, cost, loops, parameters
from ridgeline.records.finding import Evidence, Finding
from ridgeline.source.calls import calls_at
from ridgeline.source.loops import loops_at, node_of, parts_of
from ridgeline.source.vectorized import clamped_to, limit_of, parameters_of

RULE = Rule(id="clip-by-tensor", family="launch", budget="overhead", needs=("sites", "stacks"))

STAY = 2
"""Calls a parameter on a CPU, by torch's own function: a norm and a product (130 parameters: 1.2 ms
of the 2.4 that a loop with five calls each takes)."""
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "clip_grads_with_norm_")
_CLAMPS = frozenset({"clamp", "clamp_"})
_NORMING = frozenset({"norm", "vector_norm", "square", "pow", "sum", "abs", "clamp_", "clamp"})


def look(case: Case) -> Iterator[Finding]:
    for loop in loops(case):
        if loop.over != "gradients":
            continue
        share = cost(case, loop.sites) * _goes(case, loop)
        if share >= LEAST:
            yield _found(case, loop, share)


def _goes(case: Case, loop: Loop) -> float:
    """Of the calls: on a CPU `clip_grad_norm_` goes through the gradients too."""
    if case.on_gpu or not loop.calls:
        return 1.0
    return max(1 - STAY * parameters(case) / loop.calls, 0.0)


def _found(case: Case, loop: Loop, share: float) -> Finding:
    line, change = _in_source(case, loop)
    number = parameters(case)
    return make_finding(
        RULE,
        claim=f"{loop.name} goes through the gradients one tensor at a "
        f"time: {units.count(round(loop.calls))} operator calls a step",
        share=share,
        evidence=[
            Evidence(
                what="calls a step",
                value=loop.calls,
                text=f"{units.count(round(loop.calls))} for {round(number)} parameters: "
                + ", ".join(loop.ops[:4]),
            ),
            Evidence(what="time", text=f"{units.percent(share)} of the step", value=share),
        ],
        place=loop.place,
        line=line,
        change=change,
        confidence="high" if line is not None else "medium",
    )


def _in_source(case: Case, loop: Loop) -> tuple[int | None, str]:
    at = [one for one in loops_at(case.sources, loop.place) if not one.trains]
    norming = [one for one in at if one.calls & _NORMING or one.squares]
    calls = calls_at(case.sources, loop.place, _CLIPS)
    if calls and ("foreach" in calls[0].keywords or not norming):
        text = calls[0].text.replace(", foreach=False", "")
        return calls[0].line, text if calls[0].loops < 2 else _all("", "")
    source = case.sources.get(loop.place.file)
    if not norming or source is None:
        return None, _all("", "")
    first = min(norming, key=lambda one: (-one.inner, one.line))
    parameters_ = parameters_of(source, first.line)
    if first.calls & _CLAMPS and not first.calls & _NORMING - _CLAMPS and not first.squares:
        return first.line, _by_value(parameters_, clamped_to(parts_of(source, first)[2]))
    limit = limit_of(source, first.line, node_of(source, first))
    return first.line, _all(parameters_, limit)


def _all(given: str, limit: str) -> str:
    """With the program's own names; one that it does not show is its writer's to choose."""
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
