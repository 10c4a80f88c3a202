"""A finding about a wait: the same shape for every sort of it."""

from collections.abc import Sequence

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, found
from ridgeline.diagnosis.rules._launch import bound_ahead
from ridgeline.diagnosis.rules._sync import (
    Waiting,
    also,
    cost,
    evidence,
    library_of,
    through_library,
)
from ridgeline.records.finding import Confidence, Finding
from ridgeline.source.reading.waiting_lines import Line

FEW = 4
"""Waits a step: with fewer the host runs ahead between them, so that no launches are hidden that
were not. One wait of 23 µs does not make a step 1.58 × as fast."""


def wait_finding(
    rule: Rule,
    case: Case,
    wait: Waiting,
    *,
    claim: str,
    lines: Sequence[Line],
    change: str,
    of_library: str = "",
) -> Finding:
    """`lines`: those of the user's function that may ask for it, the likeliest first. Where a
    library waits, the line that calls it is named instead, and the change is `of_library`: what
    would end the library's wait, where that is known."""
    doubt = ""
    if wait.library and not lines:
        lines = through_library(case, wait.place, wait.via)
        change = of_library
        doubt = f"the wait is the library's own, in {library_of(wait.via)}" + (
            "" if of_library else ": only another option or function of it ends it"
        )
    share = cost(case, wait)
    confidence: Confidence = "high" if lines else "medium" if wait.place is not None else "low"
    if not lines:
        doubt = "the source could not be read or does not show the call: the line is the function's"
        if wait.place is None:
            doubt = "the trace has no Python stacks: the line is not known"
    return found(
        rule,
        claim=claim + (f", inside {wait.library}()" if wait.library else ""),
        share=share,
        evidence=[*evidence(case, wait, share), *also(lines)],
        place=wait.place,
        line=lines[0].number if lines else None,
        change=change,
        confidence=confidence,
        doubt=doubt,
        bound=bound_ahead(case, share) if wait.waits >= FEW else None,
    )
