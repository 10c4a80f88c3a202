"""Gradients that are never cleared: each step moves the parameters by the sum of all gradients so
far."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._user_code import located, place_at, source_of
from ridgeline.records.finding import Finding
from ridgeline.records.run import OptimizerSeen
from ridgeline.records.trace import Place
from ridgeline.source.calls import SourceCall, all_calls

MIN_CHECKED_STEPS = 5
"""Steps that must be checked before the rule speaks: a program that clears its gradients every few
steps has done so by then."""

RULE = Rule(id="gradients-not-zeroed", family="correctness", budget="memory", needs=("capture",))


def look(case: Case) -> Iterator[Finding]:
    capture = case.capture
    for optimizer in capture.optimizers if capture is not None else ():
        checked, kept = optimizer.gradients_checked, optimizer.gradients_kept
        if checked < MIN_CHECKED_STEPS or kept < checked:
            continue
        place, name = _step_call(case, optimizer)
        yield make_finding(
            RULE,
            claim=f"the gradients of {optimizer.name} are never cleared: each backward adds to "
            "those of all earlier steps",
            share=0.0,
            bound=1.0,
            evidence=[
                measured(
                    "gradients of the step before",
                    f"still there in {kept} of {checked} steps checked",
                    kept,
                )
            ],
            place=place,
            change=f"{name}.zero_grad()  # before each backward, or after each {name}.step()",
            confidence="high",
            wrong_results=True,
        )


def _step_call(case: Case, optimizer: OptimizerSeen) -> tuple[Place | None, str]:
    """Return the line where the optimizer steps, and the optimizer's name in that line."""
    place = place_at(optimizer.place)
    source = source_of(case, place)
    if place is None or source is None:
        return place, "optimizer"
    called = next((c for c in all_calls(source, ("step",)) if c.line == place.line), None)
    return located(case, place.file, place.line), _name(case, called)


def _name(case: Case, called: SourceCall | None) -> str:
    """Return the optimizer's name in `optimizer.step()` or in `scaler.step(optimizer)`."""
    if called is None or not called.on:
        return "optimizer"
    scaled = case.capture is not None and case.capture.flags.gradient_scaler
    return called.first if scaled and called.first else called.on
