"""A compiled program that is compiled again while it runs."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._source_lines import (
    EARLY,
    CompileLine,
    compile_lines,
    recompiled,
    start_ends,
    user_sources,
    users_own,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import Compilation
from ridgeline.records.trace import Place

LEAST_SHARE = 0.01
LEAST = 2
"""Steps that compile again: the second shape makes torch compile for all shapes, once."""
LIMIT = 8
"""torch's own: after so many compilations of a frame it runs it uncompiled."""
_SIZE = re.compile(r"tensor '([^']+)' (size|stride|rank) mismatch(?: at index (\d+))?")
_VALUE = re.compile(r"([\w\[\]'\".]+) == ")
_GUARDED = re.compile(r"`[\w\[\]'\".]*(?:\w|\])\.(\w+)`")

RULE = Rule(id="recompiles", family="compile", budget="pauses")


class _Assigned(Struct, frozen=True):
    place: Place
    change: str


class _Again(Struct, frozen=True):
    share: float
    steps: int
    seconds: float
    basis: str
    over: bool = False
    """Whether the last steps did not compile."""


def look(case: Case) -> Iterator[Finding]:
    again = _in_run(case) if case.capture is not None and case.steps else _in_trace(case)
    if again is None or again.share < LEAST_SHARE:
        return
    remembered = recompiled(case.capture.compilations) if case.capture is not None else []
    reason = _reason(remembered)
    line = _line(case)
    frame = _frame(remembered)
    attribute = _attribute(reason)
    assigned = _assigned(case, frame, attribute)
    place = line.place if line is not None else _called(remembered) or frame
    yield make_finding(
        RULE,
        claim=_claim(again, reason, len(remembered)),
        share=again.share,
        evidence=_evidence(again, remembered),
        place=assigned.place if assigned is not None else place,
        change=assigned.change if assigned is not None else _change(line, reason),
        confidence="high" if remembered else "medium",
        doubt="" if remembered else "the trace may have been taken while the program still started",
    )


def _in_run(case: Case) -> _Again | None:
    capture = case.capture
    end = start_ends(case.steps, capture.compilations if capture is not None else ())
    later = [s for s in case.steps if s.index > end >= 0]
    compiling = [s for s in later if s.compile_ns > 0]
    at_once = bool(later) and later[0].compile_ns > 0  # no calm step in between
    if len(compiling) < (EARLY if at_once else LEAST):
        return None
    counted = [s for s in later if s.window != "traced"]
    whole = sum(s.dur_ns for s in counted)
    spent = sum(s.compile_ns for s in counted)
    over = not any(s.compile_ns for s in later[len(later) // 2 :])
    if at_once and over:
        whole += _alone(case)  # it is over: what ran on afterwards was calm
    share = min(spent / whole, 1.0) if whole else 0.0
    return _Again(share, len(compiling), spent / 1e9, f"{len(later)} steps", over)


def _alone(case: Case) -> int:
    """Time the program ran unobserved, after the windows."""
    windows = case.capture.windows if case.capture is not None else ()
    return sum(max(w.end_ns - w.start_ns, 0) for w in windows if w.kind == "alone")


def _in_trace(case: Case) -> _Again | None:
    """Compilations in a window of steps: those the device waited for, else the host's time."""
    rows = [r for r in case.study.regions if r.kind == "compilation"] if case.study else []
    window = case.study.window if case.study is not None else None
    if not rows or window is None or window.steps < LEAST or not window.ns:
        return None
    spent = sum(row.host_ns for row in rows)
    share = case.idle("compile") if case.on_gpu else spent / window.ns
    return _Again(share, window.steps, spent / 1e9, f"{window.steps} traced steps")


def _reason(remembered: Sequence[Compilation]) -> str:
    """The kind of guard that failed most: tensor 'x' size mismatch at index 0."""
    said = Counter(_kind(one.recompile_reason) for one in remembered)
    return said.most_common(1)[0][0] if said else ""


def _kind(reason: str) -> str:
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
    number = again.basis.partition(" ")[0]
    times = "all" if number == str(again.steps) else f"{again.steps} of"
    because = f" because {reason}" if reason.startswith("the ") else f": {reason}" if reason else ""
    gave_up = ", until torch gave up" if again.over and remembered >= LIMIT - 1 else ""
    return (
        f"{times} {again.basis} compiled again, {units.seconds(again.seconds)} in all{because}"
        f"{gave_up}"
    )


def _evidence(again: _Again, remembered: Sequence[Compilation]) -> list[Evidence]:
    text = f"{units.seconds(again.seconds)}, {units.percent(again.share)} of {again.basis}"
    rows = [Evidence(what="compiling", text=text, value=again.share)]
    for one in list(remembered)[:2]:
        rows.append(Evidence(what="guard that failed", text=one.recompile_reason.splitlines()[0]))
    return rows


def _line(case: Case) -> CompileLine | None:
    lines = compile_lines(case)
    return lines[0] if len(lines) == 1 else None


def _called(remembered: Sequence[Compilation]) -> Place | None:
    """Return the user's line that most often called a recompiled function, or None."""
    places = Counter(one.called_at for one in remembered if one.called_at)
    return users_own(places.most_common(1)[0][0]) if places else None


def _frame(remembered: Sequence[Compilation]) -> Place | None:
    return next((p for one in remembered if (p := users_own(one.place)) is not None), None)


def _attribute(reason: str) -> str:
    """step, of a guard on self.step or L['self'].step; "" of one on an argument."""
    named = _GUARDED.search(reason)
    return named[1] if named is not None else ""


def _assigned(case: Case, frame: Place | None, attribute: str) -> _Assigned | None:
    """The line that changes an attribute a guard is on: in the compiled frame's file first, under a
    loop or in a method that runs again, not where the object is made."""
    first = case.sources.get(frame.file) if frame is not None else None
    sources = [first] if first is not None else []
    found_: list[tuple[bool, int, _Assigned]] = []
    for source in [*sources, *user_sources(case)] if attribute else []:
        compiled = source.scope(frame.line) if frame is not None and source is first else None
        for node in ast.walk(source.module):
            hit = _stored(node, attribute)
            if not hit or not isinstance(node, ast.Assign | ast.AugAssign):
                continue
            scope = source.scope(node.lineno)
            name = str(getattr(scope, "name", ""))
            if name != "__init__" and (name or source.loops(node)):
                at = Place(file=source.file, line=node.lineno, function=name)
                change = _as_tensor(node, hit)
                found_.append((scope is not compiled, len(found_), _Assigned(at, change)))
    return min(found_)[2] if found_ else None


def _stored(node: ast.AST, attribute: str) -> str:
    """The target with this attribute, as written: self.step; "" where a statement has none."""
    if not isinstance(node, ast.Assign | ast.AugAssign):
        return ""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = [p for t in targets for p in ast.walk(t) if isinstance(p, ast.Attribute)]
    kept = (p for p in parts if p.attr == attribute and isinstance(p.ctx, ast.Store))
    return next((ast.unparse(p) for p in kept), "")


def _as_tensor(node: ast.Assign | ast.AugAssign, attribute: str) -> str:
    """A tensor's value is in no guard."""
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
    text = re.sub(r",\s*dynamic=\w+", "", line.text)
    return f"{text[:-1]}, dynamic=True)  # or pad to a few lengths"
