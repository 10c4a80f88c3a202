"""unpinned-memory: the loader hands out batches that the device cannot fetch by itself."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, found
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
    id="unpinned-memory",
    family="input",
    title="The loader's batches are not pinned",
    budget="transfer",
    needs=("capture", "trace", "gpu"),
    looks_at="`pin_memory` of the DataLoader, and the copies the trace calls `HtoD (Pageable -> "
    "Device)`: how long no kernel ran beside them and how long they held the host.",
    threshold="1 % of the step held up by copies from memory that is not pinned, in a program "
    "whose loader has `pin_memory=False` and whose copies ask not to wait (else see "
    "pageable-copy). What pinned copies of the same bytes take, at 64 GB/s, "
    "is not counted.",
    why="The device fetches batches by itself only from pages that cannot be moved. From others "
    "the driver copies them piece by piece through a buffer of its own, with the processor, and "
    "the host is held until that is done, also with `non_blocking=True`. A loader with "
    "`pin_memory=True` does this in a thread beside the training.",
    fix="`DataLoader(…, pin_memory=True)` and `batch.to(device, non_blocking=True)`. Batches that "
    "are neither tensors nor lists or dicts of them need a `pin_memory()` method of their own.",
    wrong_when="Memory is short: pinned memory cannot be swapped out. Batches are small, or the "
    "loader is what the device waits for: then the thread that pins only takes a processor.",
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
    yield found(
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
