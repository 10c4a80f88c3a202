"""A compiled function that is cut into pieces, with Python in between."""

import re
from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules._compiling import users_own
from ridgeline.diagnosis.rules._user_code import source_of
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.calls import NUMBERS, BreakingCall, breaking_call

MIN_SHARE = 0.01
MIN_TRACED_SHARE = 0.05
MIN_TRACED_PIECES = 4.0
"""Compiled pieces a step from which a trace alone is reported."""
MIN_PIECES = 1.5
"""Compiled pieces a step from which there is something to join."""
FUSED_SHARE = 0.7
"""Share of the time of element-wise operators between the pieces that fusing saves at most: a chain
of several then reads and writes its tensors once."""
PYTHON_FACTOR = 1.5
"""Time between the pieces as a multiple of the time in spans around them. Python between the spans
has none. A model of three pieces had 29 % of its step in such spans, and joining them took 36 %
away."""
MAX_SHARE = 0.95
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
    if not breaks or pieces < MIN_PIECES or share < MIN_SHARE:
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
    """Yield a finding for many small compiled pieces, whatever cut them."""
    if pieces < MIN_TRACED_PIECES or share < MIN_TRACED_SHARE:
        return
    text = f"{units.significant(pieces)} a step, {units.percent(share)} of it around them"
    sites = [s for s in case.sites.ops if s.op.startswith(_COMPILED) and s.place is not None]
    yield make_finding(
        RULE,
        claim=f"each step runs {units.significant(pieces)} compiled pieces, and the code around "
        f"them takes up to {units.percent(share)} of it",
        share=share,
        evidence=(measured("compiled pieces", text, pieces),),
        place=sites[0].place if sites else None,
        change=f"# {_TO_FIND}",
        confidence="low",
        doubt="functions may be compiled one by one on purpose",
    )


def _breaks(case: Case) -> list[_Break]:
    """Return each line at which execution leaves a graph, in the order Dynamo met them. After a
    break Dynamo compiles the rest of the function under a name that tells the line. If it gave up
    the user's function altogether, there is only a reason."""
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
    """Return the share of the step around the pieces, but for one piece's, and what fusing the
    operators between them could save."""
    if not pieces:
        return 0.0
    glue = sum(s.host_ns for s in case.sites.ops if s.op.startswith(_GLUE)) - _generated(case)
    around = case.host_share(PYTHON_FACTOR * max(glue, 0.0) * (1 - 1 / pieces))
    between = FUSED_SHARE * case.exposed(*_between(case))
    if case.on_gpu:
        busy = case.busy or 0.0
        around = 0.0 if busy >= SATURATED else min(around, 1 - busy)
    return min(around + between, MAX_SHARE)


def _generated(case: Case) -> float:
    """Return a step's time in code that Inductor generated for the host, which has no operators."""
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
    """Return the call that breaks, if the source has it: on the line where execution resumes, or in
    a function that this line calls, which Dynamo cannot inline then."""
    builtin = _BUILTIN.search(one.reason)
    names = next((n for word, n in _CALLS.items() if word in one.reason.lower()), ())
    names = (*names, builtin[1]) if builtin is not None else names
    if one.place is None or not names:
        return None
    compilations = case.capture.compilations if case.capture is not None else ()
    frames = [users_own(c.place) for c in compilations if one.reason in c.graph_breaks]
    return breaking_call(case.sources, one.place, names, [f for f in frames if f is not None])


def _short(case: Case, one: _Break, at: BreakingCall | None) -> str:
    """Return what breaks the graph: the call, else by Dynamo's reason, else the line as written."""
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
    source = source_of(case, one.place)
    return source.line(one.place.line).partition("  #")[0] if source and one.place else ""


def _evidence(breaks: list[_Break], pieces: float, share: float) -> list[Evidence]:
    lines = ", ".join(f"line {one.place.line}" for one in breaks[:4] if one.place is not None)
    text = f"{len(breaks)}: {lines}" if lines else str(len(breaks))
    rows = [measured("graph breaks", text, len(breaks))]
    if pieces:
        text = f"{units.significant(pieces)} a step, {units.percent(share)} of it around them"
        rows.append(measured("compiled pieces", text, pieces))
    for reason in [one.reason for one in breaks if one.reason][:2]:
        rows.append(read("reason", reason.strip().splitlines()[0][:120]))
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
