"""Copies from pinned memory that nothing runs beside."""

from collections.abc import Iterator

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, found
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
from ridgeline.source.reading.sent_ahead import sent_ahead
from ridgeline.units import bytes_, percent, seconds

RULE = Rule(
    id="blocking-copy",
    family="transfer",
    title="Copies to the device that nothing runs beside",
    budget="transfer",
    needs=("trace", "gpu"),
    looks_at="Copies to the device that are not from pageable memory: how long no kernel ran "
    "beside them, whether the host waited for them (`non_blocking` is off), the line that asks.",
    threshold="1 % of the step held up. At most the device's own computing counts: a copy cannot "
    "be hidden behind less work than it takes.",
    why="A GPU copies and computes at the same time, with different parts of it. But a copy that "
    "is waited for leaves nothing to compute beside it, and one on the same stream as the kernels "
    "comes after the last and before the next of them. So the step is as long as both together, "
    "where it could be as long as the longer one.",
    fix="""Do not wait, and copy the next batch on a stream of its own while this one is worked on.

```python
def ahead(batches):  # each a list of tensors in pinned memory
    beside, ready = torch.cuda.Stream(), None
    for batch in batches:
        with torch.cuda.stream(beside):
            following = [part.to(device, non_blocking=True) for part in batch]
        if ready is not None:
            yield ready
        torch.cuda.current_stream().wait_stream(beside)
        for part in following:
            part.record_stream(torch.cuda.current_stream())
        ready = following
    if ready is not None:
        yield ready

for images, labels in ahead(loader):
    train(images, labels)
```

`non_blocking=True` alone lets the host run ahead; the copy itself still takes its turn.""",
    wrong_when="The next batch depends on this step's result. A second batch on the device takes "
    "its memory.",
)


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
        yield found(
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
