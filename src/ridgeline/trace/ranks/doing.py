"""What a rank did in given spans of its own time: kernels by operator while its device worked,
else where its host was. Every nanosecond of the spans gets one name."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.columns import Events
from ridgeline.trace.intervals import NOTHING, Spans, clip, covered, innermost, subtract, union
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links, Rows
from ridgeline.trace.ranks.collectives import FAMILIES, communication_rows, family_of
from ridgeline.trace.ranks.origin import LONGEST, Labels, Origins
from ridgeline.trace.trace import Trace

HOST = "host: "
"""Before what the host was in while the device had nothing to do."""
NOWHERE = HOST + "nothing recorded"
BEFORE = "before its trace begins"

Label = Callable[[Rows], Labels]


def doing(
    trace: Trace, links: Links, spans: Spans, lanes: Iterable[int]
) -> tuple[tuple[str, int], ...]:
    """Names and nanoseconds, the largest first; `lanes`: the threads that ask for collectives."""
    found: Counter[str] = Counter()
    rest = clip(spans, _recorded(trace), np.iinfo(np.int64).max)
    found[BEFORE] = spans.total - rest.total
    origins = Origins(trace, links)
    for rows, label in _device_layers(trace, links, origins, spans):
        rest = _take(found, rest, *_in_turn(trace.device, rows), label, "")
    # without step marks the main lane may be gloo's worker: the thread of most operators, too
    threads = list(dict.fromkeys([*lanes, links.main_lane, _busiest(trace.ops)]))
    for table, label in _host_layers(trace, origins):
        for lane in threads:
            rows = np.flatnonzero((table.lane == lane) & _touching(table, rest))
            rest = _take(found, rest, *_deepest(table, rows), label, HOST)
    if rest.total:
        found[NOWHERE] += rest.total
    named = ((name, ns) for name, ns in found.items() if ns)
    return tuple(sorted(named, key=lambda item: (-item[1], item[0])))


def _busiest(table: Events) -> int:
    return int(np.bincount(table.lane).argmax()) if len(table) else -1


def _recorded(trace: Trace) -> int:
    """When the first event of any sort begins: late ranks often start recording late, too."""
    tables = (trace.ops, trace.annotations, trace.calls, trace.device, trace.frames)
    return min((int(table.ts[0]) for table in tables if len(table)), default=0)


def _device_layers(
    trace: Trace, links: Links, origins: Origins, spans: Spans
) -> Iterator[tuple[Rows, Label]]:
    """Kernels of the model, then copies and fills, then other collectives."""
    device = trace.device
    touching = _touching(device, spans)
    communication = np.zeros(len(device), bool)
    communication[communication_rows(trace)] = True
    kernel = device.kind == Kind.KERNEL

    def by_operator(rows: Rows) -> Labels:
        return origins.labels(links.device_op[rows], device.name[rows])

    def by_family(rows: Rows) -> Labels:
        names, code = np.unique(device.name[rows], return_inverse=True)
        families = [FAMILIES[family_of(trace.text(int(name)))] for name in names]
        return Labels(code, [f"communication ({name or 'collective'})" for name in families])

    yield np.flatnonzero(touching & kernel & ~communication), by_operator
    yield np.flatnonzero(touching & ~kernel), by_operator
    yield np.flatnonzero(touching & communication), by_family


def _host_layers(trace: Trace, origins: Origins) -> Iterator[tuple[Events, Label]]:
    """Tables from the most telling to the least."""

    def by_name(table: Events) -> Label:
        def label(rows: Rows) -> Labels:
            names, code = np.unique(table.name[rows], return_inverse=True)
            return Labels(code, [trace.text(int(name))[:LONGEST] for name in names])

        return label

    spans = trace.annotations
    steps = trace.names_where(spans.name, lambda name: name.startswith("ProfilerStep"))
    telling = trace.names_where(
        spans.name, lambda name: name.startswith(("enumerate(DataLoader", "Optimizer."))
    )
    yield trace.ops, lambda rows: origins.labels(rows, trace.ops.name[rows])
    for table in (spans.take(telling), trace.frames, spans.take(~telling & ~steps), trace.calls):
        yield table, by_name(table)


def _touching(table: Events, spans: Spans) -> NDArray[np.bool_]:
    return covered(spans, table.ts, table.end) > 0


def _in_turn(table: Events, rows: Rows) -> tuple[Spans, Rows]:
    """Rows as disjoint spans: where two run at once, the time is the earlier one's."""
    if not len(rows):
        return NOTHING, rows
    start, end = table.ts[rows], table.end[rows]
    reach = np.append(start[0], np.maximum.accumulate(end)[:-1])
    start = np.maximum(start, reach)
    keep = end > start
    return Spans(start[keep], end[keep]), rows[keep]


def _deepest(table: Events, rows: Rows) -> tuple[Spans, Rows]:
    """Nested rows of one thread as disjoint spans, each the innermost row's."""
    start, end = table.ts[rows], table.end[rows]
    cuts = np.unique(np.concatenate((start, end)))
    if len(cuts) < 2:
        return NOTHING, rows[:0]
    row = innermost(start, end, cuts[:-1])
    keep = row >= 0
    return Spans(cuts[:-1][keep], cuts[1:][keep]), rows[row[keep]]


def _take(
    found: Counter[str], rest: Spans, segments: Spans, rows: Rows, label: Label, before: str
) -> Spans:
    """Books what the segments cover of the rest, by their rows' names; gives what is left."""
    share = covered(rest, segments.start, segments.end)
    some = share > 0
    if not some.any():
        return rest
    code, texts = label(rows[some])
    total = np.zeros(len(texts), np.int64)
    np.add.at(total, code, share[some])
    for text, ns in zip(texts, total.tolist(), strict=True):
        found[before + text] += ns
    return subtract(rest, union(segments.start, segments.end, sorted_=True))
