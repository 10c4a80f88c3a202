"""Batches are copied to the device from memory that is not pinned."""

from collections.abc import Iterator

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._copies import (
    LEAST,
    Sent,
    beside,
    evidence,
    holds_up,
    named,
    pinned_bound,
    pinned_share,
    repeated,
    sent,
    unblocked,
)
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.run import LoaderSeen
from ridgeline.units import bytes_, percent

RULE = Rule(
    id="pageable-copy",
    family="transfer",
    title="Copies to the device from memory that is not pinned",
    budget="transfer",
    needs=("trace", "gpu"),
    looks_at="Copies the trace calls `HtoD (Pageable -> Device)`: how long no kernel ran beside "
    "them, how long the host was held, the line that asks; and `pin_memory` of the DataLoader.",
    threshold="1 % of the step held up. What the same bytes need from pinned memory, at 64 GB/s "
    "and hidden behind the step's own work as far as it goes, is not counted.",
    why="A GPU reads host memory by itself, but only pages that cannot be moved: pinned ones. From "
    "ordinary memory the driver first copies piece by piece into a pinned buffer of its own, with "
    "the processor, at a fifth of the bus's rate or less; and the call returns only when that is "
    "done, so that the host cannot launch anything meanwhile.",
    fix="""Pin the batches and do not wait for the copy.

```python
loader = DataLoader(dataset, batch_size=64, num_workers=4, pin_memory=True)
for images, labels in loader:
    images = images.to(device, non_blocking=True)
    labels = labels.to(device, non_blocking=True)
```

Batches made by hand: `batch.pin_memory()` once, or `torch.empty(shape, pin_memory=True)` to be
filled again and again. A few numbers: make them on the device (`torch.full((n,), x,
device=device)`).""",
    wrong_when="Memory is short: pinned memory cannot be swapped out. Pinning a tensor just before "
    "it is copied once costs as much as it gains, if it is done in the same thread.",
)


def look(case: Case) -> Iterator[Finding]:
    for one in sent(case):
        if not one.pageable or repeated(case, one) or _only_the_loader(case, one):
            continue
        left = max(pinned_share(case, one.bytes) - beside(case), 0.0)
        share = holds_up(case, one) - left
        if share < LEAST:
            continue
        loader = _unpinned(case)
        confidence: Confidence = "medium" if one.place is not None else "low"
        facts = list(evidence(case, one, share))
        if loader is not None:
            where = f" at {loader.place}" if loader.place else ""
            facts.append(
                Evidence(what="DataLoader", text=f"pin_memory=False{where}", source="read")
            )
        if loader is not None or one.line is not None:
            confidence = "high"
        yield found(
            RULE,
            claim=f"{named(one)} moves {bytes_(one.bytes)} a step from memory that is not pinned "
            f"and holds up {percent(share)} of it",
            share=share,
            bound=pinned_bound(case, one.bytes, share),
            evidence=facts,
            place=one.place,
            line=one.line.number if one.line is not None else None,
            change=_change(one, loader),
            confidence=confidence,
            doubt="" if one.place is not None else "the trace has no Python stacks",
        )


def _only_the_loader(case: Case, one: Sent) -> bool:
    """The line does not wait, and the loader's pin_memory is all that lacks: unpinned-memory's."""
    does_not_wait = one.line is not None and "non_blocking=True" in one.line.text
    return does_not_wait and _unpinned(case) is not None


def _unpinned(case: Case) -> LoaderSeen | None:
    loaders = case.capture.loaders if case.capture is not None else ()
    return next((ld for ld in loaders if ld.batches and not ld.pin_memory), None)


def _change(one: Sent, loader: LoaderSeen | None) -> str:
    pinned = "DataLoader(..., pin_memory=True)" if loader is not None else "batch.pin_memory()"
    first = f"{pinned}  # once, where the batch is made"
    if one.sites[0].op.startswith("aten::index"):
        return "index = index.to(device)  # once: an index on the host is copied at each use"
    if one.line is None:
        return f"{first}\nbatch = batch.to(device, non_blocking=True)"
    if "tensor(" in one.line.expression:
        return f"torch.full(shape, value, device=device)  # made there: {one.line.expression}"
    text = one.line.text
    calls = [one.line.expression] if text.count(".to(") <= 1 else _calls(text)
    for call in calls:
        text = text.replace(call, unblocked(call), 1)
    return f"{first}\n{text}"


def _calls(text: str) -> list[str]:
    """images.to(device) and labels.to(device), of one line."""
    found, at = [], 0
    while (at := text.find(".to(", at)) >= 0:
        end = text.find(")", at)
        if end < 0:
            break
        found.append(text[at : end + 1])
        at = end
    return list(dict.fromkeys(found)) if len(set(found)) == len(found) else found
