"""The loader hands out batches in memory that the device cannot fetch by itself."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, read
from ridgeline.diagnosis.rules._input_wait import feeder
from ridgeline.diagnosis.rules._loaders import loader_with, made_at, taken_at
from ridgeline.diagnosis.rules._waits import (
    MIN_SHARE,
    beside,
    evidence,
    holds_up,
    only_the_loader,
    pinned_bound,
    pinned_share,
    repeated,
    sent,
)
from ridgeline.records.finding import Finding
from ridgeline.units import bytes_, percent

RULE = Rule(
    id="unpinned-memory", family="input", budget="transfer", needs=("capture", "trace", "gpu")
)


def look(case: Case) -> Iterator[Finding]:
    loader = feeder(case)
    if loader is None or loader.pin_memory:
        return
    # If the line itself waits, or is not known, pageable-copy names both faults.
    found = [
        copies
        for copies in sent(case)
        if copies.pageable and not repeated(case, copies) and only_the_loader(copies, loader)
    ]
    size = sum(copies.bytes for copies in found)
    left = max(pinned_share(case, size) - beside(case), 0.0)
    share = sum(holds_up(case, copies) for copies in found) - left
    if share < MIN_SHARE:
        return
    largest = max(found, key=lambda copies: copies.bytes)
    call = made_at(case, loader)
    place = call.place if call is not None else taken_at(loader)
    yield make_finding(
        RULE,
        claim=f"the loader's batches are not pinned: copying {bytes_(size)} a step holds up "
        f"{percent(share)} of it",
        share=share,
        bound=pinned_bound(case, size, share),
        evidence=[read("DataLoader", "pin_memory=False"), *evidence(case, largest, share)],
        place=place,
        fix="pin-memory",
        change=loader_with(case, place, call, pin_memory=True),
        confidence="high",
    )
