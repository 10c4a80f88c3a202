"""A compiled function that is cut into pieces, with Python in between."""

import re
from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._source_lines import users_own
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.graph_breaks import NUMBERS, BreakingCall, breaking_call

LEAST_SHARE = 0.01
LEAST_TRACED = 0.05
MANY = 4.0
"""Pieces, in a trace alone."""
PIECES = 1.5
"""Compiled regions a step from which there is something to join."""
FUSED = 0.7
"""Of the time of elementwise operators left outside: what fusing them saves at most, as a chain of
several reads and writes its tensors once."""
UNSEEN = 1.5
"""Of the time in spans around the pieces: Python between them has none. A model of three pieces had
29 % of its step in such spans, and joining them took 36 % away."""
_RESUME = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")
_GLUE = ("TorchDynamo Cache Lookup", "Pregraph bytecode", "AOTDispatcher Runtime Wrapper Prologue",
         "CompiledFunction", "CompiledFunctionBackward", "Torch-Compiled Region")  # fmt: skip
"""Spans around compiled code whose own time is neither an operator's nor a kernel's."""
_COMPILED = ("CompiledFunction", "Torch-Compiled Region")
_PRODUCTS = ("mm", "conv", "attention", "linear", "matmul")
_BUILTIN = re.compile(r"builtin operator `(\w+)`")
_CALLS = {"item": NUMBERS, "print": ("print",), "numpy": ("numpy",)}
_TO_FIND = "to find the lines: torch.compile(…, fullgraph=True) raises where the graph breaks"

RULE = Rule(id="graph-breaks", family="compile", budget="overhead", needs=("sites",))


class _Break(Struct, frozen=True):
    reason: str
    place: Place | None


def look(case: Case) -> Iterator[Finding]:
    pieces = _pieces(case)
    share = _share(case, pieces)
    if case.capture is None:
        yield from _in_trace(case, pieces, share)
        return
    breaks = _breaks(case)
    if not breaks or pieces < PIECES or share < LEAST_SHARE:
        return
    first = next((one for one in breaks if one.place is not None), breaks[0])
    at = _exact(case, first)
    place = at.place if at is not None else first.place
    yield make_finding(
        RULE,
        claim=f"{_short(case, first, at)} breaks the compiled graph: "
        f"{units.significant(pieces)} compiled pieces a step instead of one",
        share=share,
        evidence=_evidence(breaks, pieces, share),
        place=place,
        change=_change(case, first, at),
        confidence="high" if place is not None else "medium",
    )


def _in_trace(case: Case, pieces: float, share: float) -> Iterator[Finding]:
    """Many small compiled pieces, whatever cut them."""
    if pieces < MANY or share < LEAST_TRACED:
        return
    text = f"{units.significant(pieces)} a step, {units.percent(share)} of it around them"
    sites = [s for s in case.sites.ops if s.op.startswith(_COMPILED) and s.place is not None]
    yield make_finding(
        RULE,
        claim=f"each step runs {units.significant(pieces)} compiled pieces, and the code around "
        f"them takes up to {units.percent(share)} of it",
        share=share,
        evidence=(Evidence(what="compiled pieces", text=text, value=pieces),),
        place=sites[0].place if sites else None,
        change=f"# {_TO_FIND}",
        confidence="low",
        doubt="functions may be compiled one by one on purpose",
    )


def _breaks(case: Case) -> list[_Break]:
    """Each line at which execution leaves a graph, in the order Dynamo met them: after a break it
    compiles the rest of the function under a name that tells the line. Where the user's function
    was given up altogether there is only a reason."""
    compilations = case.capture.compilations if case.capture is not None else ()
    found_: dict[tuple[str, int], _Break] = {}
    reasons: dict[tuple[str, str], str] = {}
    told: dict[str, Place | None] = {}
    for one in compilations:
        frame, match = users_own(one.place), _RESUME.match(one.function)
        name = match["function"] if match is not None else one.function
        if frame is not None and match is not None:
            reason = reasons.pop((frame.file, name), "")
            at = Place(file=frame.file, line=int(match["line"]), function=name)
            found_.setdefault((at.file, at.line), _Break(reason, at))
        for reason in one.graph_breaks:
            if not reason.startswith("<class"):  # Dynamo's own new start, no break
                told[reason] = told.get(reason) or frame
                reasons[frame.file if frame is not None else "", name] = reason
    known = {one.reason for one in found_.values()}
    rest = [_Break(reason, frame) for reason, frame in told.items() if reason not in known]
    return [*found_.values(), *rest]


def _pieces(case: Case) -> float:
    """Compiled pieces the forward of a step calls."""
    calls = sum(s.calls for s in case.sites.ops if s.op == "CompiledFunction")
    regions = [s for s in case.sites.ops if s.op.startswith("Torch-Compiled Region")]
    return calls or sum(site.calls for site in regions)


def _share(case: Case, pieces: float) -> float:
    """The time around the pieces, but for one piece's; and what fusing the operators between them
    could save."""
    if not pieces:
        return 0.0
    glue = sum(s.host_ns for s in case.sites.ops if s.op.startswith(_GLUE)) - _generated(case)
    around = case.host_share(UNSEEN * max(glue, 0.0) * (1 - 1 / pieces))
    between = FUSED * case.exposed(*_between(case))
    if not case.on_gpu:
        return min(around + between, 0.95)
    busy = case.busy or 0.0
    return min((0.0 if busy >= SATURATED else min(around, 1 - busy)) + between, 0.95)


def _generated(case: Case) -> float:
    """A step's time in code that Inductor generated for the host, which has no operators."""
    if case.study is None or case.on_gpu:
        return 0.0
    rows = [r for r in case.study.regions if "CompiledFxGraph" in r.name]
    spent = sum(row.host_ns for row in rows) / max(case.study.window.steps, 1)
    called = [s for s in case.sites.ops if s.op.startswith("aten::") and _is_inside(s)]
    return max(spent - sum(site.host_ns for site in called), 0.0)


def _between(case: Case) -> list[OpSite]:
    return [
        site
        for site in case.sites.ops
        if site.phase == "forward"
        and site.op.startswith("aten::")
        and not _is_inside(site)
        and not any(word in site.op for word in _PRODUCTS)
    ]


def _is_inside(site: OpSite) -> bool:
    return any(name.startswith(_COMPILED) for name in site.within)


def _exact(case: Case, one: _Break) -> BreakingCall | None:
    """The call that breaks, where the source has it: on the line it resumes at, or in a function
    that line calls, which Dynamo cannot inline then."""
    builtin = _BUILTIN.search(one.reason)
    names = next((n for word, n in _CALLS.items() if word in one.reason.lower()), ())
    names = (*names, builtin[1]) if builtin is not None else names
    if one.place is None or not names:
        return None
    compilations = case.capture.compilations if case.capture is not None else ()
    frames = [users_own(c.place) for c in compilations if one.reason in c.graph_breaks]
    return breaking_call(case.sources, one.place, names, [f for f in frames if f is not None])


def _short(case: Case, one: _Break, at: BreakingCall | None) -> str:
    """What breaks it: the call, else by Dynamo's reason, else the line as written."""
    if at is not None:
        return f"`{at.called}`"
    builtin = _BUILTIN.search(one.reason)
    if builtin is not None:
        return f"`{builtin[1]}()`"
    written = _line(case, one).rstrip(":")
    if written:
        return f"`{written}`"
    if "Tensor.item()" in one.reason:
        return "`.item()`"
    return f'"{one.reason.strip().splitlines()[0][:80]}"' if one.reason else "something"


def _line(case: Case, one: _Break) -> str:
    source = case.sources.get(one.place.file) if one.place is not None else None
    return source.line(one.place.line).partition("  #")[0] if source and one.place else ""


def _evidence(breaks: list[_Break], pieces: float, share: float) -> list[Evidence]:
    lines = ", ".join(f"line {one.place.line}" for one in breaks[:4] if one.place is not None)
    text = f"{len(breaks)}: {lines}" if lines else str(len(breaks))
    rows = [Evidence(what="graph breaks", text=text, value=float(len(breaks)))]
    if pieces:
        text = f"{units.significant(pieces)} a step, {units.percent(share)} of it around them"
        rows.append(Evidence(what="compiled pieces", text=text, value=pieces))
    for one in [one for one in breaks if one.reason][:2]:
        reason = one.reason.strip().splitlines()[0][:120]
        rows.append(Evidence(what="reason", text=reason, source="read"))
    return rows


def _change(case: Case, one: _Break, at: BreakingCall | None) -> str:
    text = at.text if at is not None else _line(case, one)
    if at is not None and at.without:
        return f"{at.without}  # a tensor; {at.called} outside the compiled part"
    if text.startswith(("if ", "elif ", "while ")):
        return (
            f"# `{text.rstrip(':')}` needs a number: choose with torch.where(condition, one, "
            "other), or torch.cond, or decide outside the compiled function"
        )
    if text.startswith("print("):
        return f"if not torch.compiler.is_compiling():\n    {text}"
    if text:
        return f"# take `{text}` out of the compiled function\n# {_TO_FIND}"
    return f"# take what breaks it out of the compiled function; {_TO_FIND}"
