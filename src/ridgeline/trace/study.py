"""Reads trace files, checks and analyses them, and adds them up to one `TraceStudy`."""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import msgspec
from msgspec import Struct

from ridgeline.errors import RidgelineError
from ridgeline.records.facts import Check, Trust
from ridgeline.records.trace import Idle, TraceStudy, Window
from ridgeline.trace.analyses.allocations import memory_curves
from ridgeline.trace.analyses.busy import devices, overlap, properties_of
from ridgeline.trace.analyses.critical_path import critical_path
from ridgeline.trace.analyses.idle import idle, idle_gaps
from ridgeline.trace.analyses.kernels import categories, kernels
from ridgeline.trace.analyses.launch import launch
from ridgeline.trace.analyses.modules import modules
from ridgeline.trace.analyses.ops import ops, ops_by_shape
from ridgeline.trace.analyses.phases import phases
from ridgeline.trace.analyses.regions import regions
from ridgeline.trace.analyses.roofline import roofline
from ridgeline.trace.ceilings import device_of
from ridgeline.trace.links import Links, links_of
from ridgeline.trace.reading import cache as kept
from ridgeline.trace.reading.reader import parse, refuse_beyond
from ridgeline.trace.trace import Trace
from ridgeline.trace.validation import missing, trust_in, validate, without_outliers
from ridgeline.trace.verdict import verdict
from ridgeline.trace.window import Steps, steps_of, window_of

ALL_ROWS = 1_000_000
MAX_LOST_SHARE = 0.5
"""A file is refused if a larger share of its events cannot be read. The rest would not be a fair
sample, because damage and unknown kinds of events are not spread at random."""


def _silent(text: str) -> None:
    pass


class Opened(Struct, frozen=True):
    """A trace with its cache entry, or the thread that writes its cache."""

    trace: Trace
    entry: kept.Entry | None = None
    writing: Thread | None = None


def study(
    paths: Sequence[Path],
    *,
    steps: str | None = None,
    limit: int = 50,
    cache: bool = True,
    max_events: int | None = None,
    on_progress: Callable[[str], None] = _silent,
) -> tuple[TraceStudy, tuple[Trace, ...]]:
    """Return the study of the files, and the traces. Several files are ranks of one job.

    A file with more than `max_events` events is refused; by default, one with more events than
    memory has room for.
    """
    if not paths:
        raise RidgelineError("no trace was given")
    answer_name = _answer_name(steps, limit)
    if cache and len(paths) == 1:
        entry = kept.find(paths[0])
        answer = entry.answer(answer_name, TraceStudy) if entry else None
        if entry is not None and answer is not None:
            trace = entry.trace(paths[0])
            if trace is not None:
                return answer, (trace,)
    opened = []
    try:
        for number, path in enumerate(paths, 1):
            which = f" ({number} of {len(paths)})" if len(paths) > 1 else ""
            on_progress(f"reading {path.name}{which}")
            opened.append(open_trace(path, cache, max_events))
        on_progress("analysing")
        result = _study_all([o.trace for o in opened], steps, limit)
    finally:
        for opened_trace in opened:
            if opened_trace.writing is not None:
                on_progress("writing the cache")
                opened_trace.writing.join()
    if cache and len(paths) == 1 and (entry := opened[0].entry or kept.find(paths[0])):
        entry.remember(answer_name, result)
    return result, tuple(o.trace for o in opened)


def open_trace(path: Path, cache: bool = True, max_events: int | None = None) -> Opened:
    """Return the trace from the cache where it holds this content. Else read the file, and write
    the cache meanwhile."""
    entry = kept.find(path) if cache else None
    trace = entry.trace(path) if entry is not None else None
    if trace is not None:
        refuse_beyond(max_events, trace.origin.events, path, by_memory=False)
        return Opened(trace, entry)
    trace = parse(path, max_events)
    _refuse_if_mostly_lost(trace)
    trace = without_outliers(trace)
    large = trace.origin.text_bytes >= kept.MIN_TEXT_BYTES
    return Opened(trace, None, kept.write_behind(trace, path) if cache and large else None)


def _refuse_if_mostly_lost(trace: Trace) -> None:
    losses = [loss for loss in trace.origin.losses if loss.lost]
    lost = sum(loss.count for loss in losses)
    total = lost + trace.origin.events
    if lost <= MAX_LOST_SHARE * total:
        return
    worst = max(losses, key=lambda loss: loss.count)
    raise RidgelineError(
        f"{trace.origin.path}: {lost:,} of {total:,} events could not be read, too many for any "
        f"figure to be believed; {worst.count:,} of them: {worst.reason}",
        f"the first of these: {worst.example}" if worst.example else "",
    )


def _study_all(traces: Sequence[Trace], steps: str | None, limit: int) -> TraceStudy:
    if len(traces) == 1:
        links = links_of(traces[0])
        return study_one(traces[0], links, steps, limit)
    from ridgeline.trace.ranks.job import compared
    from ridgeline.trace.ranks.merging import merged  # what one trace does not need

    joined = [links_of(trace) for trace in traces]
    studies = [
        study_one(trace, links, steps, ALL_ROWS)
        for trace, links in zip(traces, joined, strict=True)
    ]
    across, job_checks = compared(traces, joined, [each.window for each in studies])
    return merged(studies, across, limit, job_checks)


def study_one(
    trace: Trace,
    links: Links,
    steps: str | None = None,
    limit: int = 50,
    *,
    for_findings: bool = False,
) -> TraceStudy:
    """Return the study of one trace. A second thread computes the idle causes: numpy leaves the
    second core free. With `for_findings`, the parts that no rule reads are left out: modules,
    shapes, the roofline, the critical path and the overlap."""
    marks = steps_of(trace)
    window = window_of(trace, steps)
    checks = validate(trace, links, marks)
    trust = _less_trusted(trust_in("idle", checks), trust_in("idle causes", checks))
    with ThreadPoolExecutor(1, thread_name_prefix="ridgeline-idle") as beside:
        idling = beside.submit(_idle, trace, links, window, marks, trust)
        result = _without_idle_causes(trace, links, window, marks, checks, limit)
        if not for_findings:
            result = _with_tables(result, trace, links, limit)
        idle_time = idling.result()
    headline_trust = trust_in("idle" if result.devices else "ops", checks)
    result = msgspec.structs.replace(result, idle=idle_time, trust=headline_trust)
    return msgspec.structs.replace(result, verdict=verdict(result))


def _idle(trace: Trace, links: Links, window: Window, marks: Steps, trust: Trust) -> Idle:
    gaps = idle_gaps(trace, links, window) if window.ns else ()
    return idle(trace, links, gaps, marks, trust)


def _without_idle_causes(
    trace: Trace,
    links: Links,
    window: Window,
    marks: Steps,
    checks: tuple[Check, ...],
    limit: int,
) -> TraceStudy:
    """Return everything that findings need, except the idle causes."""
    top, left_out = kernels(trace, links, window, limit)
    return TraceStudy(
        files=(trace.origin.path,),
        events=trace.origin.events,
        label=trace.label,
        backend=trace.metadata.backend,
        window=window,
        validation=checks,
        devices=devices(trace, window, marks, trust_in("idle", checks)),
        launch=launch(trace, links, window, window.steps),
        kernels=top,
        kernels_left_out=left_out,
        ops=ops(trace, links, window, limit),
        categories=categories(trace, links, window),
        phases=phases(trace, links, window),
        memory=memory_curves(trace, window),
        regions=regions(trace, links, window),
        missing=missing(trace, marks),
    )


def _with_tables(study: TraceStudy, trace: Trace, links: Links, limit: int) -> TraceStudy:
    """Return the study with the parts that only its own tables show."""
    window = study.window
    known = properties_of(trace, int(trace.device.device[0])) if len(trace.device) else None
    device = device_of(known) if known is not None else None
    return msgspec.structs.replace(
        study,
        overlap=overlap(trace, links, window),
        shapes=ops_by_shape(trace, links, window, limit),
        modules=modules(trace, links, window, limit),
        roofline=roofline(trace, links, window, device, limit),
        critical_path=critical_path(trace, links, window),
    )


def _less_trusted(first: Trust, second: Trust) -> Trust:
    order = ("good", "doubtful", "unreliable")
    return max(first, second, key=lambda trust: order.index(trust.confidence))


def _answer_name(steps: str | None, limit: int) -> str:
    """Return the name under which the study with these options is stored in the cache."""
    text = f"{kept.fingerprint()} {steps} {limit}"
    return "study-" + hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
