"""Compiling that takes longer than all it can save in a program this short."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._compiling import CompileLine, compile_lines, start_ends
from ridgeline.diagnosis.rules._user_code import place_at
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import Step
from ridgeline.records.trace import Place

MIN_COMPILING_S = 2.0
"""Nobody waits for less."""
MIN_PRODUCT_SHARE = 0.5
"""Share of the step in matrix products, convolutions and attention, which compiling leaves to the
same libraries. With less of them it is not known how slow the step would be without compiling."""
MAX_GAIN = 3.0
"""How many times as fast compiling makes the rest of the step, at most in most programs."""
_PRODUCT = ("mm", "conv", "attention", "linear", "matmul", "dot")

RULE = Rule(
    id="compile-unpaid", family="compile", budget="pauses", needs=("capture", "timed", "sites")
)


def look(case: Case) -> Iterator[Finding]:
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
        RULE,
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
        change=_change(line),
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
    if case.on_gpu:
        return case.device_share(sum(site.device_ns for site in mine))
    return case.host_share(sum(site.host_ns for site in mine))


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


def _change(line: CompileLine | None) -> str:
    if line is None or not line.without:
        return "# leave torch.compile out of short runs"
    what = "not" if line.without.startswith("# ") else "without torch.compile"
    return f"{line.without}  # {what} in a run this short"
