"""Programs that compile: graph breaks, compiling again, and compiling that does not pay.

The rules share the lines that ask for compiling, and when a program's start ends.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules._user_code import place_at, source_of, user_sources
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import Compilation, Step
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Place
from ridgeline.source.calls import (
    NUMBERS,
    BreakingCall,
    breaking_call,
    with_argument,
    without_options,
)
from ridgeline.source.file import SourceFile

MIN_STEPS_RECOMPILING = 3
"""Steps in a row that compile again after the first. A second shape, made dynamic, is one, a last
batch or another mode a second."""
_NOT_THE_USERS = re.compile(
    r"site-packages|dist-packages|"
    r"(?:^|/)torch/(?:_\w+|nn|optim|autograd|utils|fx|amp|ao|cuda|distributed|export)/"
)
"""Paths of installed packages, and of torch if it was built from source."""


class CompileLine(Struct, frozen=True, kw_only=True):
    place: Place
    text: str
    """The call as written: `torch.compile(model)`, or the decorator."""
    without: str = ""
    """The statement without compiling: net = model, for net = torch.compile(model). A comment if
    nothing remains of it."""


def compile_lines(case: Case) -> tuple[CompileLine, ...]:
    """Return the lines of the user's source that ask for compiling."""
    found = []
    for source in user_sources(case):
        for node in ast.walk(source.module):
            if isinstance(node, ast.Call) and _is_compile(node.func):
                found.append(
                    _compiling_line(source, node, ast.unparse(node), _without(source, node))
                )
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [
                    _compiling_line(source, decorator, f"@{ast.unparse(decorator)}")
                    for decorator in node.decorator_list
                    if _is_compile(decorator)
                ]
    return tuple(found)


def users_own(place: str) -> Place | None:
    """Return the place of a compiled frame if it is the user's; None for torch's own wrappers."""
    found = place_at(place)
    if found is None or _NOT_THE_USERS.search(found.file.replace("\\", "/")):
        return None
    return found


def start_ends(steps: Sequence[Step], compilations: Sequence[Compilation]) -> int:
    """Return the index of the last step that belongs to the start, in which any compiled program
    compiles; -1 if none compiled. It is the first calm step after one that compiled. If guards
    failed again and again before, or no step was calm, it is the first step that compiled."""
    ordered = sorted(steps, key=lambda step: step.index)
    compiling = [step.index for step in ordered if step.compile_ns > 0]
    if not compiling:
        return -1
    later = (step for step in ordered if step.index > compiling[0])
    calm = next((step.index for step in later if not step.compile_ns), None)
    early = sum(1 for index in compiling[1:] if calm is None or index < calm)
    again = min(early, len(recompiled(compilations))) >= MIN_STEPS_RECOMPILING
    return compiling[0] if calm is None or again else calm


def recompiled(compilations: Sequence[Compilation]) -> list[Compilation]:
    return [compilation for compilation in compilations if compilation.recompile_reason]


def _is_compile(called: ast.AST) -> bool:
    text = ast.unparse(called) if isinstance(called, ast.Name | ast.Attribute) else ""
    return text == "torch.compile" or (
        isinstance(called, ast.Attribute) and called.attr == "compile" and not text.startswith("re")
    )


def _compiling_line(
    source: SourceFile, node: ast.expr, text: str, without: str = ""
) -> CompileLine:
    function = source.function_name(node.lineno)
    place = Place(file=source.file, line=node.lineno, function=function)
    return CompileLine(place=place, text=text, without=without)


def _without(source: SourceFile, call: ast.Call) -> str:
    statement = source.statement_of(call)
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return):
        return ""
    written = ast.unparse(statement)
    given = call.args[0] if call.args else next((k.value for k in call.keywords), None)
    if ast.unparse(call.func) != "torch.compile" or given is None:
        return f"# {written}" if isinstance(statement, ast.Expr) else ""
    left = written.replace(ast.unparse(call), ast.unparse(given), 1)
    begin, _, end = left.partition(" = ")
    return f"# {written}" if begin == end or left == ast.unparse(given) else left


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

GRAPH_BREAKS = Rule(id="graph-breaks", family="compile", budget="overhead", needs=("sites",))


class _Break(Struct, frozen=True):
    reason: str
    place: Place | None


def graph_breaks(case: Case) -> Iterator[Finding]:
    """A compiled function that is cut into pieces, with Python in between."""
    pieces = _pieces(case)
    share = _share(case, pieces)
    if case.capture is None:
        yield from _breaks_in_trace(case, pieces, share)
        return
    breaks = _breaks(case)
    if not breaks or pieces < MIN_PIECES or share < MIN_SHARE:
        return
    first = next((one for one in breaks if one.place is not None), breaks[0])
    at = _exact(case, first)
    place = at.place if at is not None else first.place
    yield make_finding(
        GRAPH_BREAKS,
        claim=f"{_short(case, first, at)} breaks the compiled graph: "
        f"{units.significant(pieces)} compiled pieces a step instead of one",
        share=share,
        evidence=_breaks_evidence(breaks, pieces, share),
        place=place,
        change=_breaks_change(case, first, at),
        confidence="high" if place is not None else "medium",
    )


def _breaks_in_trace(case: Case, pieces: float, share: float) -> Iterator[Finding]:
    """Yield a finding for many small compiled pieces, whatever cut them."""
    if pieces < MIN_TRACED_PIECES or share < MIN_TRACED_SHARE:
        return
    text = f"{units.significant(pieces)} a step, {units.percent(share)} of it around them"
    sites = [s for s in case.sites.ops if s.op.startswith(_COMPILED) and s.place is not None]
    yield make_finding(
        GRAPH_BREAKS,
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
    written = _breaks_line(case, one).rstrip(":")
    if written:
        return f"`{written}`"
    if "Tensor.item()" in one.reason:
        return "`.item()`"
    return f'"{one.reason.strip().splitlines()[0][:80]}"' if one.reason else "something"


def _breaks_line(case: Case, one: _Break) -> str:
    source = source_of(case, one.place)
    return source.line(one.place.line).partition("  #")[0] if source and one.place else ""


def _breaks_evidence(breaks: list[_Break], pieces: float, share: float) -> list[Evidence]:
    lines = ", ".join(f"line {one.place.line}" for one in breaks[:4] if one.place is not None)
    text = f"{len(breaks)}: {lines}" if lines else str(len(breaks))
    rows = [measured("graph breaks", text, len(breaks))]
    if pieces:
        text = f"{units.significant(pieces)} a step, {units.percent(share)} of it around them"
        rows.append(measured("compiled pieces", text, pieces))
    for reason in [one.reason for one in breaks if one.reason][:2]:
        rows.append(read("reason", reason.strip().splitlines()[0][:120]))
    return rows


def _breaks_change(case: Case, one: _Break, at: BreakingCall | None) -> str:
    text = at.text if at is not None else _breaks_line(case, one)
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


MIN_STEPS = 2
"""Steps that compile again. The second shape makes torch compile for all shapes, once."""
TORCH_LIMIT = 8
"""torch's own limit: after so many compilations of a frame it runs the frame uncompiled."""
_SIZE = re.compile(r"tensor '([^']+)' (size|stride|rank) mismatch(?: at index (\d+))?")
_VALUE = re.compile(r"([\w\[\]'\".]+) == ")
_GUARDED = re.compile(r"`[\w\[\]'\".]*(?:\w|\])\.(\w+)`")

RECOMPILES = Rule(id="recompiles", family="compile", budget="pauses")


class _Again(Struct, frozen=True):
    share: float
    steps: int
    looked_at: int
    """The steps among which they are."""
    seconds: float
    traced: bool = False
    over: bool = False
    """Whether the last steps did not compile."""

    @property
    def basis(self) -> str:
        return f"{self.looked_at} {'traced ' if self.traced else ''}steps"


def recompiles(case: Case) -> Iterator[Finding]:
    """A compiled program that is compiled again while it runs."""
    again = _in_run(case) if case.capture is not None and case.steps else _recompiles_in_trace(case)
    if again is None or again.share < MIN_SHARE:
        return
    remembered = recompiled(case.capture.compilations) if case.capture is not None else []
    kinds = Counter(_guard(compilation.recompile_reason) for compilation in remembered)
    reason = kinds.most_common(1)[0][0] if kinds else ""
    lines = compile_lines(case)
    line = lines[0] if len(lines) == 1 else None
    owned = (users_own(compilation.place) for compilation in remembered)
    frame = next((place for place in owned if place is not None), None)
    assigned = _assigned(case, frame, _attribute(reason))
    place = line.place if line is not None else _called(remembered) or frame
    yield make_finding(
        RECOMPILES,
        claim=_claim(again, reason, len(remembered)),
        share=again.share,
        evidence=_recompiles_evidence(again, remembered),
        place=assigned[0] if assigned is not None else place,
        fix="" if assigned is not None or "value of" in reason else "compile-dynamic",
        change=assigned[1] if assigned is not None else _recompiles_change(line, reason),
        confidence="high" if remembered else "medium",
        doubt="" if remembered else "the trace may have been taken while the program still started",
    )


def _in_run(case: Case) -> _Again | None:
    capture = case.capture
    end = start_ends(case.steps, capture.compilations if capture is not None else ())
    later = [s for s in case.steps if s.index > end >= 0]
    compiling = [s for s in later if s.compile_ns > 0]
    at_once = bool(later) and later[0].compile_ns > 0  # no calm step in between
    if len(compiling) < (MIN_STEPS_RECOMPILING if at_once else MIN_STEPS):
        return None
    counted = [s for s in later if s.window != "traced"]
    whole = sum(s.dur_ns for s in counted)
    spent = sum(s.compile_ns for s in counted)
    over = not any(s.compile_ns for s in later[len(later) // 2 :])
    if at_once and over:  # the program ran on without compiling
        windows = capture.windows if capture is not None else ()
        whole += sum(max(w.end_ns - w.start_ns, 0) for w in windows if w.kind == "alone")
    share = min(spent / whole, 1.0) if whole else 0.0
    return _Again(share, len(compiling), len(later), spent / 1e9, over=over)


def _recompiles_in_trace(case: Case) -> _Again | None:
    """Return the compilations in a window of steps, by the time the device waited for them, or by
    the host's time on a CPU."""
    rows = [r for r in case.study.regions if r.kind == "compilation"] if case.study else []
    window = case.study.window if case.study is not None else None
    if not rows or window is None or window.steps < MIN_STEPS or not window.ns:
        return None
    spent = sum(row.host_ns for row in rows)
    share = case.idle("compile") if case.on_gpu else spent / window.ns
    return _Again(share, window.steps, window.steps, spent / 1e9, traced=True)


def _guard(reason: str) -> str:
    """Return which guard failed: the size of `x` changes in dimension 0."""
    text = reason.partition(": ")[2] or reason
    size = _SIZE.search(text)
    if size is not None:
        at = f" in dimension {size[3]}" if size[3] else ""
        return f"the {size[2]} of `{size[1]}` changes{at}"
    value = _VALUE.search(text)
    if value is not None:
        return f"the value of `{value[1]}` changes"
    return text.splitlines()[0].partition("#")[0].strip()[:100] if text else ""


def _claim(again: _Again, reason: str, remembered: int) -> str:
    times = "all" if again.looked_at == again.steps else f"{again.steps} of"
    because = f" because {reason}" if reason.startswith("the ") else f": {reason}" if reason else ""
    gave_up = ", until torch gave up" if again.over and remembered >= TORCH_LIMIT - 1 else ""
    return (
        f"{times} {again.basis} compiled again, {units.seconds(again.seconds)} in all{because}"
        f"{gave_up}"
    )


def _recompiles_evidence(again: _Again, remembered: Sequence[Compilation]) -> list[Evidence]:
    text = f"{units.seconds(again.seconds)}, {units.percent(again.share)} of {again.basis}"
    rows = [measured("compiling", text, again.share)]
    reasons = [compilation.recompile_reason for compilation in remembered[:2]]
    return rows + [measured("guard that failed", text.splitlines()[0]) for text in reasons]


def _called(remembered: Sequence[Compilation]) -> Place | None:
    """Return the user's line that most often called a recompiled function, or None."""
    places = Counter(one.called_at for one in remembered if one.called_at)
    return users_own(places.most_common(1)[0][0]) if places else None


def _attribute(reason: str) -> str:
    """Return step for a guard on self.step or L['self'].step; "" for a guard on an argument."""
    named = _GUARDED.search(reason)
    return named[1] if named is not None else ""


def _assigned(case: Case, frame: Place | None, attribute: str) -> tuple[Place, str] | None:
    """Return the line that changes an attribute with a guard, and that line without a guard. Lines
    in the compiled frame's file come first, under a loop or in a method that runs again; the line
    that makes the object does not count."""
    if not attribute:
        return None
    first = case.sources.get(frame.file) if frame is not None else None
    found: list[tuple[bool, int, Place, str]] = []
    for source in user_sources(case, [frame.file] if frame is not None else ()):
        compiled = source.scope(frame.line) if frame is not None and source is first else None
        for node in ast.walk(source.module):
            hit = _stored(node, attribute)
            if not hit or not isinstance(node, ast.Assign | ast.AugAssign):
                continue
            scope = source.scope(node.lineno)
            name = str(getattr(scope, "name", ""))
            if name != "__init__" and (name or source.loops(node)):
                place = Place(file=source.file, line=node.lineno, function=name)
                change = _as_tensor(node, hit)
                found.append((scope is not compiled, len(found), place, change))
    return min(found, key=lambda each: each[:2])[2:] if found else None


def _stored(node: ast.AST, attribute: str) -> str:
    """Return the target with this attribute, as written: self.step; "" if there is none."""
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return ""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [p for t in targets for p in ast.walk(t) if isinstance(p, ast.Attribute)]
    kept = (p for p in parts if p.attr == attribute and isinstance(p.ctx, ast.Store))
    return next((ast.unparse(p) for p in kept), "")


def _as_tensor(node: ast.Assign | ast.AugAssign, attribute: str) -> str:
    """Return code with the attribute as a tensor, whose value is in no guard."""
    on, _, name = attribute.rpartition(".")
    where = "in __init__" if on == "self" else "before the loop"
    kept = f"{on}.register_buffer({name!r}, torch.tensor(0.0))  # once, {where}, not a number"
    alone = isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [attribute]
    set_ = f"{attribute}.fill_({ast.unparse(node.value)})" if alone else ast.unparse(node)
    return f"{kept}\n{set_}  # in place; torch.clamp, torch.where instead of min(), max(), if"


def _recompiles_change(line: CompileLine | None, reason: str) -> str:
    if "value of" in reason:
        return "# give it as a tensor: torch.tensor(value), not as a Python number"
    if line is None or line.text.startswith("@"):
        return "torch.compile(model, dynamic=True)  # or pad to a few lengths"
    text = with_argument(without_options(line.text, ("dynamic",)), "dynamic=True")
    return f"{text}  # or pad to a few lengths"


MIN_COMPILING_S = 2.0
"""Nobody waits for less."""
MIN_PRODUCT_SHARE = 0.5
"""Share of the step in matrix products, convolutions and attention, which compiling leaves to the
same libraries. With less of them it is not known how slow the step would be without compiling."""
MAX_GAIN = 3.0
"""How many times as fast compiling makes the rest of the step, at most in most programs."""
_PRODUCT = ("mm", "conv", "attention", "linear", "matmul", "dot")

COMPILE_UNPAID = Rule(
    id="compile-unpaid", family="compile", budget="pauses", needs=("capture", "timed", "sites")
)


def compile_unpaid(case: Case) -> Iterator[Finding]:
    """Compiling that takes longer than all it can save in a program this short."""
    compiling = [step for step in _start(case) if step.compile_ns]
    spent, step = sum(s.compile_ns for s in compiling) / 1e9, case.step_ms / 1e3
    finished = case.capture is not None and case.capture.ended == "finished"
    if spent < MIN_COMPILING_S or not step or not finished:
        return  # a program that was stopped says nothing of how long it was meant to run
    products, steps = _products(case), _steps(case)
    each = (MAX_GAIN - 1) * (1 - products) * step
    if products < MIN_PRODUCT_SHARE or not steps or spent <= each * steps:
        return
    share = spent / (spent + steps * step)
    lines = compile_lines(case)
    line = lines[0] if len(lines) == 1 else None
    needed = f"{units.count(spent / each)} steps" if each else "any number of steps"
    # The first compilation also imports torch's compiler and starts its processes.
    with_start = max(spent, sum(s.dur_ns for s in compiling) / 1e9)
    total = f"{units.seconds(spent)}, {units.percent(share)} of the time of all steps"
    same = f"{units.percent(products)} of a step, the same without compiling"
    yield make_finding(
        COMPILE_UNPAID,
        claim=f"compiling took {units.seconds(spent)}, the {units.count(steps)} steps "
        f"{units.seconds(steps * step)}: it cannot pay before {needed}",
        share=share,
        bound=1 + with_start / (steps * step),
        evidence=(
            measured("compiling", total, spent),
            measured("steps", f"{units.count(steps)} of {units.seconds(step)}, compiled", steps),
            measured("products", same, products),
            Evidence(
                what="pays at the earliest after",
                text=f"{needed}, if compiling made the rest {MAX_GAIN:g} × as fast",
                source="estimated",
            ),
        ),
        place=line.place if line is not None else _compiled_call(case),
        change=_unpaid_change(line),
        confidence="medium",
        doubt="a trial of a longer run pays back later",
    )


def _start(case: Case) -> list[Step]:
    """Return the steps before the program first ran without compiling. What compiles later is
    reported by recompiles."""
    end = start_ends(case.steps, case.capture.compilations if case.capture is not None else ())
    return [step for step in case.steps if step.index <= end]


def _products(case: Case) -> float:
    mine = [s for s in case.sites.ops if any(word in s.op for word in _PRODUCT)]
    return case.sites_share(mine)


def _steps(case: Case) -> int:
    """Return the steps that were counted, and those that the program had time for after the
    windows."""
    capture = case.capture
    if capture is None:
        return 0
    alone = [w for w in capture.windows if w.kind == "alone"]
    later = sum(w.end_ns - w.start_ns for w in alone) / 1e6 / case.step_ms
    return round(capture.steps + later)


def _compiled_call(case: Case) -> Place | None:
    modules = case.capture.modules if case.capture is not None else ()
    compiled = (m.place for m in modules if "OptimizedModule" in m.wrappers and m.place)
    return place_at(next(compiled, ""))


def _unpaid_change(line: CompileLine | None) -> str:
    if line is None or not line.without:
        return "# leave torch.compile out of short runs"
    what = "not" if line.without.startswith("# ") else "without torch.compile"
    return f"{line.without}  # {what} in a run this short"
