"""A compiled program that is compiled again while it runs."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._compiling import (
    MIN_STEPS_RECOMPILING,
    CompileLine,
    compile_lines,
    recompiled,
    start_ends,
    users_own,
)
from ridgeline.diagnosis.rules._user_code import user_sources
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import Compilation
from ridgeline.records.trace import Place
from ridgeline.source.calls import with_argument, without_options

MIN_SHARE = 0.01
MIN_STEPS = 2
"""Steps that compile again. The second shape makes torch compile for all shapes, once."""
TORCH_LIMIT = 8
"""torch's own limit: after so many compilations of a frame it runs the frame uncompiled."""
_SIZE = re.compile(r"tensor '([^']+)' (size|stride|rank) mismatch(?: at index (\d+))?")
_VALUE = re.compile(r"([\w\[\]'\".]+) == ")
_GUARDED = re.compile(r"`[\w\[\]'\".]*(?:\w|\])\.(\w+)`")

RULE = Rule(id="recompiles", family="compile", budget="pauses")


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


def look(case: Case) -> Iterator[Finding]:
    again = _in_run(case) if case.capture is not None and case.steps else _in_trace(case)
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
        RULE,
        claim=_claim(again, reason, len(remembered)),
        share=again.share,
        evidence=_evidence(again, remembered),
        place=assigned[0] if assigned is not None else place,
        fix="" if assigned is not None or "value of" in reason else "compile-dynamic",
        change=assigned[1] if assigned is not None else _change(line, reason),
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


def _in_trace(case: Case) -> _Again | None:
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


def _evidence(again: _Again, remembered: Sequence[Compilation]) -> list[Evidence]:
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


def _change(line: CompileLine | None, reason: str) -> str:
    if "value of" in reason:
        return "# give it as a tensor: torch.tensor(value), not as a Python number"
    if line is None or line.text.startswith("@"):
        return "torch.compile(model, dynamic=True)  # or pad to a few lengths"
    text = with_argument(without_options(line.text, ("dynamic",)), "dynamic=True")
    return f"{text}  # or pad to a few lengths"
