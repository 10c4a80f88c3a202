"""Finds the rank that the others waited for, and what that rank did meanwhile.

An all-reduce inside the backward makes the backward of every rank equally long, so step times hide
the slow rank. Its arrival at the collective shows it: the time from the arrival of half of the
other ranks until its own is its delay, and its kernels and calls in that time tell the cause.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.trace import Activity
from ridgeline.trace.columns import Codes, Events, Kind
from ridgeline.trace.intervals import NOTHING, Spans, clip, covered, innermost, subtract, union
from ridgeline.trace.links import Links, Rows, enclosing, nested, sums_by
from ridgeline.trace.ranks.collectives import FAMILIES, Collectives, communication_rows, family_of
from ridgeline.trace.ranks.waiting import Alignment, Waits
from ridgeline.trace.trace import Trace

MIN_SKEW_NS = 5_000
"""Arrivals with a smaller difference count as simultaneous: the ends of one collective differ by as
much."""
MAX_ACTIVITIES = 8
"""How many activities of a late rank are kept."""


@dataclass(frozen=True, slots=True)
class Late:
    """Says how often one rank came last, how long the others waited for it, and what it did."""

    count: int = 0
    caused_ns: int = 0
    doing: tuple[Activity, ...] = ()


def min_skew_ns(alignment: Alignment) -> int:
    """Return the skew below which a late arrival cannot be told from an error of the alignment."""
    return max(MIN_SKEW_NS, 3 * alignment.residual_ns)


def lateness(
    traces: Sequence[Trace],
    links: Sequence[Links],
    ranks: Sequence[Collectives],
    split: Waits,
    alignment: Alignment,
) -> tuple[Late, ...]:
    min_skew = min_skew_ns(alignment)
    result = []
    for r, rank in enumerate(ranks):
        late = np.flatnonzero((split.late == r) & (split.skew >= min_skew))
        if not len(late):
            result.append(Late())
            continue
        others = np.delete(split.start[late], r, axis=1)
        takes_part = np.delete(split.table[late], r, axis=1) >= 0
        # absent ranks sort last; from the upper median on, at least half of the ranks waited
        ordered = np.sort(np.where(takes_part, others, np.iinfo(np.int64).max), axis=1)
        waiting = ordered[np.arange(len(late)), takes_part.sum(axis=1) // 2]
        waiting = np.minimum(waiting, split.last[late])
        spans = union(waiting - alignment.offset_ns[r], split.last[late] - alignment.offset_ns[r])
        lanes, counts = np.unique(rank.lane[split.table[late, r]], return_counts=True)
        threads = [int(lane) for lane in lanes[np.argsort(-counts)] if lane >= 0]
        doing = activities(traces[r], links[r], spans, threads)
        result.append(Late(len(late), int(split.caused[late].sum()), doing))
    return tuple(result)


def sentence(late: Sequence[Late], labels: Sequence[str], split: Waits) -> str:
    """Return a sentence: which rank was late, how often, what it cost and what the rank did."""
    if not len(split):
        return ""
    latest = max(range(len(late)), key=lambda r: late[r].caused_ns)
    if not late[latest].count:
        skew = _time(int(split.skew.max()))
        return f"no rank was late: arrivals in {len(split)} collectives differ by {skew} at most"
    total = sum(each.caused_ns for each in late)
    joined = int((split.table[:, latest] >= 0).sum())
    text = (
        f"{labels[latest]} joined last in {late[latest].count} of {joined} "
        f"collective{'s' * (joined != 1)}; "
        f"the others waited {_time(late[latest].caused_ns)} for it, summed over ranks"
    )
    if late[latest].caused_ns < total:
        text += f" ({100 * late[latest].caused_ns / total:.0f} % of all waiting)"
    return text + main_activity(late[latest].doing)


def main_activity(doing: Sequence[Activity]) -> str:
    """Return a clause on the activity that took most of the delay. If no activity took half of it,
    name the largest one, and the phase or the idling that took half altogether."""
    if not doing:
        return ""
    first, total = doing[0], sum(activity.ns for activity in doing)
    if first.ns * 2 > total:
        return f", mostly {_while(first)}"
    largest = f"the largest part of it ({100 * first.ns / total:.0f} %) {_while(first)}"
    shared, together = _together(doing, total)
    whole = sum(activity.ns for activity in together)
    if whole * 2 <= total:
        return f", {largest}"
    if first in together:
        return f", mostly {shared}, {largest}"
    return f", {largest}; {100 * whole / total:.0f} % {shared}"


def _together(doing: Sequence[Activity], total: int) -> tuple[str, list[Activity]]:
    """Return the activities of the phase that took half of the time; else those in which the device
    was idle."""
    phases: Counter[str] = Counter()
    for activity in doing:
        phases[activity.phase] += activity.ns if activity.phase else 0
    phase, ns = phases.most_common(1)[0]
    if ns * 2 > total:
        return f"in its {phase}", [activity for activity in doing if activity.phase == phase]
    idle = [activity for activity in doing if activity.side in ("host", "unrecorded")]
    return "while its device was idle", idle


def _while(activity: Activity) -> str:
    if activity.side == "before the trace":
        return activity.described
    if activity.side == "unrecorded":
        return "with nothing recorded"
    if activity.side == "host":
        return f"while its device was idle and its host in {activity.described}"
    return f"while it ran {activity.described}"


def _time(ns: int) -> str:
    unit, value = next(
        ((u, ns / s) for u, s in (("s", 1e9), ("ms", 1e6)) if ns >= s), ("µs", ns / 1e3)
    )
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


class Work(NamedTuple):
    name: str
    phase: str = ""
    module: str = ""


class Labels(NamedTuple):
    """The work of each row: `work[code[i]]`."""

    code: NDArray[np.int64]
    work: list[Work]


class Origins:
    def __init__(self, trace: Trace, links: Links) -> None:
        self._trace = trace
        self._links = links

    def labels(self, rows: Rows, instead: Codes) -> Labels:
        """Return the operator, its phase and its module for each row of `Trace.ops`; only the text
        of `instead` where the row is -1."""
        known = rows >= 0
        name = np.where(known, -1, instead).astype(np.int64)
        phase, module = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
        if known.any():
            own = rows[known]
            root = self._climb(own)
            name[known] = self._trace.ops.name[own]
            phase[known] = self._phase(own, root)
            module[known] = self._module(own, root, phase[known])
        distinct, code = np.unique(
            np.column_stack((name, phase, module)), axis=0, return_inverse=True
        )
        return Labels(code.reshape(-1), [self._work(*map(int, line)) for line in distinct])

    def _work(self, name: int, phase: int, module: int) -> Work:
        text = _WRAPPERS.sub("", self._trace.text(name))[:MAX_NAME_CHARACTERS]
        return Work(text, _PHASES[phase], self._trace.text(module).removeprefix(_MODULE))

    def _climb(self, rows: Rows) -> Rows:
        """Return the outermost operator around each."""
        above = self._links.op_parent
        while True:
            up = above[rows]
            if (up < 0).all():
                return rows
            rows = np.where(up >= 0, up, rows)

    def _phase(self, rows: Rows, root: Rows) -> NDArray[np.int64]:
        """Return the phase of each row, an index into _PHASES."""
        ops, table = self._trace.ops, self._trace.annotations
        backward = self._trace.names_where(ops.name[root], lambda n: bool(_BACKWARD.search(n)))
        phases = np.where(backward, _PHASES.index("backward"), 0).astype(np.int64)
        inner = ops.take(rows)
        for prefix, phase in _SPANS:
            spans = table.take(self._trace.names_where(table.name, partial(_begins, prefix)))
            inside = enclosing(inner, spans, nested(spans)) >= 0
            phases[inside] = _PHASES.index(phase)
        return phases

    def _module(self, rows: Rows, root: Rows, phase: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the code of the module's name. A backward operator has the module of the forward
        with its number."""
        if not self._named_modules.any():
            return np.full(len(rows), -1, np.int64)
        forward = self._forward(self._trace.ops.sequence[root])
        source = np.where(phase == _PHASES.index("backward"), forward, rows)
        frame = np.where(source >= 0, self._links.op_frame[np.maximum(source, 0)], -1)
        above = self._links.frame_parent
        while (off := (frame >= 0) & ~self._named_modules[np.maximum(frame, 0)]).any():
            frame = np.where(off, above[np.maximum(frame, 0)], frame)
        return np.where(frame >= 0, self._trace.frames.name[np.maximum(frame, 0)], -1)

    def _forward(self, sequence: NDArray[np.int64]) -> Rows:
        """Return the forward operator of each sequence number: the last that holds it, which is the
        innermost."""
        ops = self._trace.ops
        forward = np.flatnonzero((ops.sequence >= 0) & (ops.forward_thread <= 0))
        forward = forward[
            ~self._trace.names_where(ops.name[forward], lambda n: bool(_BACKWARD.search(n)))
        ]
        if not len(forward):
            return np.full(len(sequence), -1, np.int64)
        order = forward[np.argsort(ops.sequence[forward], kind="stable")]
        at = np.searchsorted(ops.sequence[order], sequence, side="right") - 1
        has_forward = (
            (at >= 0) & (sequence >= 0) & (ops.sequence[order[np.maximum(at, 0)]] == sequence)
        )
        return np.where(has_forward, order[np.maximum(at, 0)], -1)

    @cached_property
    def _named_modules(self) -> NDArray[np.bool_]:
        frames = self._trace.frames
        return self._trace.names_where(frames.name, lambda name: name.startswith(_MODULE))


Label = Callable[[Rows], Labels]


def activities(
    trace: Trace, links: Links, spans: Spans, lanes: Iterable[int]
) -> tuple[Activity, ...]:
    """Return what the rank did during the spans, the longest activity first. `lanes` are the
    threads that request collectives."""
    device: Counter[Work] = Counter()
    host: Counter[Work] = Counter()
    rest = clip(spans, _first_event_ns(trace), np.iinfo(np.int64).max)
    before = Activity(ns=spans.total - rest.total, side="before the trace")
    origins = Origins(trace, links)
    for rows, label in _device_layers(trace, links, origins, spans):
        rest = _take(device, rest, *_in_turn(trace.device, rows), label)
    # without step marks the main lane may be gloo's worker: the thread of most operators, too
    threads = list(dict.fromkeys([*lanes, links.main_lane, _busiest(trace.ops)]))
    for table, label in _host_layers(trace, origins):
        for lane in threads:
            rows = np.flatnonzero((table.lane == lane) & _touching(table, rest))
            rest = _take(host, rest, *_deepest(table, rows), label)
    parts = [
        before,
        *(Activity(ns=ns, side="device", **work._asdict()) for work, ns in device.items()),
        *(Activity(ns=ns, side="host", **work._asdict()) for work, ns in host.items()),
        Activity(ns=rest.total, side="unrecorded"),
    ]
    return tuple(sorted((a for a in parts if a.ns), key=lambda a: (-a.ns, a.label)))


def _busiest(table: Events) -> int:
    return int(np.bincount(table.lane).argmax()) if len(table) else -1


def _first_event_ns(trace: Trace) -> int:
    """Return when the first event begins. A late rank often starts to record late, too."""
    tables = (trace.ops, trace.annotations, trace.calls, trace.device, trace.frames)
    return min((int(table.ts[0]) for table in tables if len(table)), default=0)


def _device_layers(
    trace: Trace, links: Links, origins: Origins, spans: Spans
) -> Iterator[tuple[Rows, Label]]:
    """Yield the kernels of the model, then copies and fills, then other collectives."""
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
        return Labels(code, [Work(f"communication ({name or 'collective'})") for name in families])

    yield np.flatnonzero(touching & kernel & ~communication), by_operator
    yield np.flatnonzero(touching & ~kernel), by_operator
    yield np.flatnonzero(touching & communication), by_family


def _host_layers(trace: Trace, origins: Origins) -> Iterator[tuple[Events, Label]]:
    """Yield the tables in which host time is looked up, the most telling first."""

    def by_name(table: Events) -> Label:
        def label(rows: Rows) -> Labels:
            names, code = np.unique(table.name[rows], return_inverse=True)
            texts = (trace.text(int(name))[:MAX_NAME_CHARACTERS] for name in names)
            return Labels(code, [Work(text) for text in texts])

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
    """Return the rows as disjoint spans. The time of two rows that overlap belongs to the earlier
    row."""
    if not len(rows):
        return NOTHING, rows
    start, end = table.ts[rows], table.end[rows]
    reach = np.append(start[0], np.maximum.accumulate(end)[:-1])
    start = np.maximum(start, reach)
    keep = end > start
    return Spans(start[keep], end[keep]), rows[keep]


def _deepest(table: Events, rows: Rows) -> tuple[Spans, Rows]:
    """Return nested rows of one thread as disjoint spans, each with its innermost row."""
    start, end = table.ts[rows], table.end[rows]
    cuts = np.unique(np.concatenate((start, end)))
    if len(cuts) < 2:
        return NOTHING, rows[:0]
    row = innermost(start, end, cuts[:-1])
    keep = row >= 0
    return Spans(cuts[:-1][keep], cuts[1:][keep]), rows[row[keep]]


def _take(times: Counter[Work], rest: Spans, segments: Spans, rows: Rows, label: Label) -> Spans:
    """Add the time of `rest` that the segments cover to the times of their work; return the time
    that is left."""
    share = covered(rest, segments.start, segments.end)
    some = share > 0
    if not some.any():
        return rest
    code, work = label(rows[some])
    total = sums_by(code, share[some], len(work))
    for named, ns in zip(work, total.tolist(), strict=True):
        times[named] += ns
    return subtract(rest, union(segments.start, segments.end, sorted_=True))


_WRAPPERS = re.compile(r"^(autograd::engine::evaluate_function: )?(torch::autograd::)?")
_BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*$|AccumulateGrad$")
_MODULE = "nn.Module: "
_PHASES = ("", "backward", "input", "optimizer")
_SPANS = (("enumerate(DataLoader", "input"), ("Optimizer.step", "optimizer"))
MAX_NAME_CHARACTERS = 80
"""Kernels of templates have names of thousands of characters."""


def _begins(prefix: str, name: str) -> bool:
    return name.startswith(prefix)
