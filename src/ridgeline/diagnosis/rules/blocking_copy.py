"""Copies from pinned memory that nothing runs beside."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._copies import (
    LEAST,
    Sent,
    beside,
    evidence,
    holds_up,
    named,
    repeated,
    sent,
    unblocked,
)
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.source.transfers import sent_ahead
from ridgeline.units import bytes_, percent, seconds

RULE = Rule(id="blocking-copy", family="transfer", budget="transfer", needs=("trace", "gpu"))


def look(case: Case) -> Iterator[Finding]:
    for one in sent(case):
        if one.pageable or repeated(case, one):
            continue
        share = min(holds_up(case, one), beside(case))
        if share < LEAST:
            continue
        waits = one.held_ns > 0
        confidence: Confidence = "high" if waits and one.line is not None else "medium"
        if one.place is None or any(site.pageable is None for site in one.sites):
            confidence = "low"
        yield make_finding(
            RULE,
            claim=f"{named(one)} moves {bytes_(one.bytes)} a step while nothing else runs"
            f"{', and is waited for' if waits else ''}: {percent(share)} of the step",
            share=share,
            evidence=[*evidence(case, one, share), _held(one)],
            place=one.place,
            line=one.line.number if one.line is not None else None,
            change=_change(case, one),
            confidence=confidence,
            doubt="" if one.place is not None else "the trace has no Python stacks",
        )


def _held(one: Sent) -> Evidence:
    text = f"{seconds(one.held_ns / 1e9)} a traced step" if one.held_ns else "no: non_blocking"
    return Evidence(what="host waits for it", text=text, value=one.held_ns / 1e6)


def _change(case: Case, one: Sent) -> str:
    source = case.sources.get(one.place.file) if one.place is not None else None
    call = unblocked(one.line.expression) if one.line is not None else ""
    return sent_ahead(source, one.line, call)
