"""Compiling that takes longer than all it can save in a program this short."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._source_lines import CompileLine, compile_lines, start_ends
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.trace import Place

LEAST_S = 2.0
"""Less nobody waits for."""
PRODUCTS = 0.5
"""Of the step, in matrix products, convolutions and attention, which compiling leaves to the same
libraries. With less of them nobody knows how slow the step would be without."""
MOST_GAIN = 3.0
"""Times faster: what compiling makes of the rest of the step, at most in most programs."""
_PRODUCT = ("mm", "conv", "attention", "linear", "matmul", "dot")

RULE = Rule(
    id="compile-unpaid", family="compile", budget="pauses", needs=("capture", "timed", "sites")
)


def look(case: Case) -> Iterator[Finding]:
    spent, step = _spent(case), case.step_ms / 1e3
    if spent < LEAST_S or not step or not _ended(case):
        return
    products = _products(case)
    each = (MOST_GAIN - 1) * (1 - products) * step
    steps = _steps(case)
    if products < PRODUCTS or not steps or spent <= each * steps:
        return
    share = spent / (spent + steps * step)
    lines = compile_lines(case)
    line = lines[0] if len(lines) == 1 else None
    needed = f"{units.count(spent / each)} steps" if each else "any number of steps"
    yield make_finding(
        RULE,
        claim=f"compiling took {units.seconds(spent)}, the {units.count(steps)} steps "
        f"{units.seconds(steps * step)}: it cannot pay before {needed}",
        share=share,
        bound=1 + _begun(case, spent) / (steps * step),
        evidence=(
            Evidence(what="compiling", text=f"{units.seconds(spent)}, {units.percent(share)} of "
                     "the time of all steps", value=spent),
            Evidence(what="steps", text=f"{units.count(steps)} of {units.seconds(step)}, compiled",
                     value=float(steps)),
            Evidence(what="products", text=f"{units.percent(products)} of a step, the same without "
                     "compiling", value=products),
            Evidence(what="pays at the earliest after", text=f"{needed}, if compiling made the "
                     f"rest {MOST_GAIN:g} × as fast", source="estimated"),
        ),
        place=_place(case, line),
        change=_change(line),
        confidence="medium",
        doubt="a trial of a longer run pays back later",
    )  # fmt: skip


def _spent(case: Case) -> float:
    """Before the program first ran without: what comes later is another rule's."""
    end = start_ends(case.steps, case.capture.compilations if case.capture is not None else ())
    return sum(step.compile_ns for step in case.steps if step.index <= end) / 1e9


def _begun(case: Case, spent: float) -> float:
    """With what comes before compiling: torch's compiler is imported, and starts its processes."""
    end = start_ends(case.steps, case.capture.compilations if case.capture is not None else ())
    first = sum(step.dur_ns for step in case.steps if step.index <= end and step.compile_ns) / 1e9
    return max(spent, first)


def _products(case: Case) -> float:
    mine = [s for s in case.sites.ops if any(word in s.op for word in _PRODUCT)]
    if case.on_gpu:
        return case.device_share(sum(site.device_ns for site in mine))
    return case.host_share(sum(site.host_ns for site in mine))


def _ended(case: Case) -> bool:
    """By itself: what was stopped or killed says nothing of how long it was meant to run."""
    return case.capture is not None and case.capture.ended == "finished"


def _steps(case: Case) -> int:
    """All of them: those counted, and those it had time for after the windows."""
    capture = case.capture
    if capture is None:
        return 0
    alone = [w for w in capture.windows if w.kind == "alone"]
    later = sum(w.end_ns - w.start_ns for w in alone) / 1e6 / case.step_ms
    return round(capture.steps + later)


def _place(case: Case, line: CompileLine | None) -> Place | None:
    if line is not None:
        return line.place
    modules = case.capture.modules if case.capture is not None else ()
    compiled = [m for m in modules if "OptimizedModule" in m.wrappers and m.place]
    file, _, number = (compiled[0].place if compiled else "").rpartition(":")
    return Place(file=file, line=int(number)) if number.isdigit() else None


def _change(line: CompileLine | None) -> str:
    if line is None or not line.without:
        return "# leave torch.compile out of short runs"
    what = "not" if line.without.startswith("# ") else "without torch.compile"
    return f"{line.without}  # {what} in a run this short"
