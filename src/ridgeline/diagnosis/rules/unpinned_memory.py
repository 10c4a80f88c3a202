"""unpinned-memory: the loader hands out batches that the device cannot fetch by itself."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._copies import (
    LEAST,
    beside,
    evidence,
    holds_up,
    only_the_loader,
    pinned_bound,
    pinned_share,
    repeated,
    sent,
)
from ridgeline.diagnosis.rules._input_wait import feeder
from ridgeline.diagnosis.rules._loaders import made_at, taken_at
from ridgeline.records.finding import Evidence, Finding
from ridgeline.units import bytes_, percent

RULE = Rule(
    id="unpinned-memory", family="input", budget="transfer", needs=("capture", "trace", "gpu")
)


def look(case: Case) -> Iterator[Finding]:
    loader = feeder(case)
    if loader is None or loader.pin_memory:
        return
    # where the line itself waits, or is not known, pageable-copy says both
    copies = [
        one
        for one in sent(case)
        if one.pageable and not repeated(case, one) and only_the_loader(one, loader)
    ]
    size = sum(one.bytes for one in copies)
    left = max(pinned_share(case, size) - beside(case), 0.0)
    share = sum(holds_up(case, one) for one in copies) - left
    if share < LEAST:
        return
    largest = max(copies, key=lambda one: one.bytes)
    call = made_at(case, loader)
    change = (call.with_options(pin_memory="True") if call is not None else "") or (
        "loader = DataLoader(dataset, batch_size, pin_memory=True)"
    )
    yield make_finding(
        RULE,
        claim=f"the loader's batches are not pinned: copying {bytes_(size)} a step holds up "
        f"{percent(share)} of it",
        share=share,
        bound=pinned_bound(case, size, share),
        evidence=[
            Evidence(what="DataLoader", text="pin_memory=False", source="read"),
            *evidence(case, largest, share),
        ],
        place=call.place if call is not None else taken_at(loader),
        change=change,
        confidence="high",
    )
