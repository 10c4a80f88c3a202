"""Copies from pinned memory that nothing runs beside."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._user_code import source_of
from ridgeline.diagnosis.rules._waits import (
    MIN_SHARE,
    beside,
    evidence,
    holds_up,
    named,
    repeated,
    sent,
    unblocked,
)
from ridgeline.records.finding import Confidence, Finding
from ridgeline.source.transfers import sent_ahead
from ridgeline.units import bytes_, percent, seconds

RULE = Rule(id="blocking-copy", family="transfer", budget="transfer", needs=("trace", "gpu"))


def look(case: Case) -> Iterator[Finding]:
    for copies in sent(case):
        share = min(holds_up(case, copies), beside(case))
        if copies.pageable or repeated(case, copies) or share < MIN_SHARE:
            continue
        line, waits = copies.line, copies.held_ns > 0
        held = f"{seconds(copies.held_ns / 1e9)} a traced step" if waits else "no: non_blocking"
        confidence: Confidence = "high" if waits and line is not None else "medium"
        if copies.place is None or any(site.pageable is None for site in copies.sites):
            confidence = "low"
        call = unblocked(line.expression) if line is not None else ""
        yield make_finding(
            RULE,
            claim=f"{named(copies)} moves {bytes_(copies.bytes)} a step while nothing else runs"
            f"{', and is waited for' if waits else ''}: {percent(share)} of the step",
            share=share,
            evidence=[
                *evidence(case, copies, share),
                measured("host waits for it", held, copies.held_ns / 1e6),
            ],
            place=copies.place,
            line=line.number if line is not None else None,
            change=sent_ahead(source_of(case, copies.place), line, call),
            confidence=confidence,
            doubt="" if copies.place is not None else "the trace has no Python stacks",
        )
