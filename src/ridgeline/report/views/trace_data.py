"""A trace's report as data: one JSON document, and one table for spreadsheets; and the form that
all its sections share: a doubt, sentences, a picture, a table, notes.

Figures are in the unit their name ends with: _ms milliseconds, _us microseconds, _pct percent,
_bytes, _per_s. null means that a figure is not in the trace or cannot be believed; `why` beside it
says which. Times of events (`at_ms`) count from the start of the window.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from ridgeline.records.facts import Check, Confidence, Trust
from ridgeline.records.finding import Findings
from ridgeline.records.trace import (
    DeviceTime,
    Gap,
    IdleCause,
    KernelRow,
    MemoryCurve,
    ModuleRow,
    OpRow,
    Place,
    RankTime,
    RooflineRow,
    TraceStudy,
    Window,
)
from ridgeline.report.document import (
    Block,
    Chart,
    Column,
    Figures,
    Item,
    Paragraph,
    Section,
    Table,
    item,
)
from ridgeline.report.plain import printable
from ridgeline.report.reasons import trace_verdict
from ridgeline.report.views.findings import findings_data

SCHEMA = "ridgeline.trace/1"
_CONFIDENCES: tuple[Confidence, ...] = ("good", "doubtful", "unreliable")
LeftOut = tuple[str, str]
"""A file, and why it could not be read."""

FIGURE_COLUMNS = (
    "section", "name", "detail", "kind", "count", "ms", "share_pct", "host_ms", "device_ms",
    "device_self_ms", "mean_us", "at_ms", "attained_pct", "bytes", "rank", "device", "file",
    "line", "function",
)  # fmt: skip
_LISTS: dict[str, dict[str, str]] = {
    "findings": {"name": "rule", "detail": "claim", "kind": "confidence"},
    "validation": {"name": "id", "detail": "claim", "kind": "severity"},
    "devices": {"ms": "busy_ms", "share_pct": "busy_pct", "count": "operations"},
    "idle_causes": {"name": "cause", "detail": "says", "count": "gaps"},
    "gaps": {"name": "cause", "detail": "host", "kind": "step"},
    "kernels": {"detail": "op", "kind": "category"},
    "ops": {"kind": "category", "ms": "device_self_ms"},
    "shapes": {"detail": "shape", "kind": "category", "ms": "device_self_ms"},
    "modules": {"name": "path", "ms": "device_ms"},
    "categories": {"name": "category"},
    "roofline": {"name": "op", "detail": "shape", "kind": "bound"},
    "phases": {"name": "phase", "ms": "host_ms"},
    "regions": {"detail": "note", "ms": "device_ms"},
    "ranks": {"name": "label", "ms": "busy_ms", "share_pct": "busy_pct"},
    "collectives": {"detail": "group", "ms": "wait_ms"},
    "memory": {"name": "device", "detail": "note", "bytes": "peak_bytes", "at_ms": "peak_at_ms"},
}
"""For each list of the document, the keys that fill a column of another name."""
NO_DEVICE = "There is no device work in this trace."
MAX_FOLDED_ROWS = 15
"""Rows of a table that a terminal shows only in the full view, in formats that fold it."""
EXPLAINED_BY_MISSING = ("no-shapes", "no-stacks", "no-memory")
"""Codes of doubts that `TraceStudy.missing` explains already, with the option of the profiler to
set."""
_ALSO_CALLED = {"gaps": ("idle", "idle causes"), "idle": ("idle causes",), "device": ("idle",)}
"""Other names under which checks make a section doubtful."""
GOOD = Trust()
SectionOrGap = Section | Item
"""A section, or a sentence that says why there is nothing to show."""


class AllDevices(Struct, frozen=True, kw_only=True):
    """The time of all devices whose figures can be believed, added up; None where there are
    none."""

    window_ns: int
    busy_ns: int | None = None
    idle_ns: int | None = None
    trust: Trust

    def part(self, ns: int | None) -> float | None:
        return None if ns is None or self.window_ns <= 0 else ns / self.window_ns


def all_devices(study: TraceStudy) -> AllDevices:
    if not study.devices:
        why = "there is no device work in this trace"
        return AllDevices(window_ns=0, trust=Trust(confidence="unreliable", why=why))
    known = [d for d in study.devices if d.busy_ns is not None and d.idle_ns is not None]
    if not known or study.idle.total_ns is None:
        why = study.devices[0].trust.why or study.idle.trust.why
        return AllDevices(
            window_ns=sum(d.window.ns for d in study.devices),
            trust=Trust(confidence="unreliable", why=why or "the device's time is not known"),
        )
    trust = max((d.trust for d in known), key=lambda t: _CONFIDENCES.index(t.confidence))
    if len(known) < len(study.devices):
        left = len(study.devices) - len(known)
        trust = Trust(confidence="doubtful", why=f"{left} of {len(study.devices)} devices left out")
    return AllDevices(
        window_ns=sum(d.window.ns for d in known),
        busy_ns=sum(d.busy_ns or 0 for d in known),
        idle_ns=sum(d.idle_ns or 0 for d in known),
        trust=trust,
    )


def data(
    study: TraceStudy, left_out: Sequence[LeftOut] = (), findings: Findings | None = None
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "files": list(study.files),
        "left_out": left_out_files(left_out),
        "label": study.label,
        "events": study.events,
        "torch": study.torch or None,
        "verdict": trace_verdict(study),
        "verdict_trust": _trust(study.trust),
        **findings_data(findings or Findings()),
        "window": _window(study.window),
        "validation": [check_data(c) for c in study.validation],
        "device": _all_devices(study),
        "devices": [_device(d, study.window) for d in study.devices],
        "idle": {
            "ms": ms(study.idle.total_ns), "gaps": study.idle.gaps, **_trust(study.idle.trust)
        },
        "idle_causes": [_cause(c) for c in study.idle.causes],
        "gaps": [_gap(g, study.window) for g in study.idle.top],
        "gap_lengths": [
            {"up_to_ms": ms(most), "gaps": count, "ms": ms(ns)}
            for most, count, ns in study.idle.histogram
        ],
        **_work(study),
        "launch": _launch(study),
        "overlap": _overlap(study),
        "phases": [
            {"phase": p.phase, "host_ms": ms(p.host_ns), "device_ms": ms(p.device_ns),
             "share_pct": pct(p.share)}
            for p in study.phases
        ],
        "memory": [_memory(m, study.window) for m in study.memory],
        "critical_path": _critical_path(study),
        **_ranks(study),
        "missing": list(study.missing),
        "problems": list(findings.problems) if findings is not None else [],
    }  # fmt: skip


def left_out_files(left_out: Sequence[LeftOut]) -> list[dict[str, str]]:
    """Return the files that were named and could not be read."""
    return [{"file": printable(file), "why": printable(why)} for file, why in left_out]


def ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e3


def pct(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _window(w: Window) -> dict[str, Any]:
    return {"start_ms": ms(w.start_ns), "end_ms": ms(w.end_ns), "ms": ms(w.ns), "basis": w.basis,
            "steps": w.steps, "note": w.note}  # fmt: skip


def check_data(c: Check) -> dict[str, Any]:
    return {"id": c.id, "severity": c.severity, "claim": c.claim, "count": c.count,
            "affects": list(c.affects)}  # fmt: skip


def _trust(t: Trust) -> dict[str, Any]:
    return {"confidence": t.confidence, "why": t.why}


def _all_devices(study: TraceStudy) -> dict[str, Any]:
    whole = all_devices(study)
    return {
        "busy_pct": pct(whole.part(whole.busy_ns)),
        "idle_pct": pct(whole.part(whole.idle_ns)),
        "busy_ms": ms(whole.busy_ns),
        "idle_ms": ms(whole.idle_ns),
        "window_ms": ms(whole.window_ns),
        **_trust(whole.trust),
    }


def _device(d: DeviceTime, window: Window) -> dict[str, Any]:
    whole = d.window.ns

    def part(ns: int | None) -> float | None:
        return None if ns is None or whole <= 0 else 100 * ns / whole

    return {
        "device": d.device,
        "name": d.name,
        "rank": d.rank,
        "window": _window(d.window),
        "busy_pct": part(d.busy_ns),
        "idle_pct": part(d.idle_ns),
        "busy_ms": ms(d.busy_ns),
        "idle_ms": ms(d.idle_ns),
        "kernel_ms": ms(d.kernel_ns),
        "communication_ms": ms(d.communication_ns),
        "exposed_communication_ms": ms(d.exposed_communication_ns),
        "copy_ms": ms(d.copy_ns),
        "exposed_copy_ms": ms(d.exposed_copy_ns),
        "operations": d.operations,
        "streams": [
            {"stream": s.stream, "busy_ms": ms(s.busy_ns), "busy_pct": part(s.busy_ns),
             "operations": s.operations}
            for s in d.streams
        ],
        "steps": [
            {"name": s.name, "at_ms": ms(s.start_ns - window.start_ns), "ms": ms(s.dur_ns),
             "busy_ms": ms(s.busy_ns), "idle_ms": ms(s.idle_ns), "whole": s.whole}
            for s in d.steps
        ],
        **_trust(d.trust),
    }  # fmt: skip


def _place(p: Place | None) -> dict[str, Any]:
    if p is None:
        return {"file": None, "line": None, "function": None}
    return {"file": p.file, "line": p.line, "function": p.function}


def _cause(c: IdleCause) -> dict[str, Any]:
    return {
        "cause": c.cause,
        "ms": ms(c.ns),
        "share_pct": pct(c.share),
        **_place(c.places[0] if c.places else None),
        "gaps": c.gaps,
        "says": c.says,
        "places": [{**_place(p), "ms": ms(p.ns)} for p in c.places],
    }


def _gap(g: Gap, window: Window) -> dict[str, Any]:
    return {"device": g.device, "at_ms": ms(g.start_ns - window.start_ns), "ms": ms(g.dur_ns),
            "cause": g.cause, "before": g.before, "after": g.after, "host": g.host,
            **_place(g.place), "step": g.step}  # fmt: skip


def _work(study: TraceStudy) -> dict[str, Any]:
    roofline = study.roofline
    return {
        "kernels": [_kernel(k) for k in study.kernels],
        "kernels_left_out": study.kernels_left_out,
        "ops": [_op(o) for o in study.ops],
        "shapes": [_op(o) for o in study.shapes],
        "modules": [_module(m) for m in study.modules],
        "categories": [
            {"category": c.category, "ms": ms(c.device_ns), "share_pct": pct(c.share),
             "count": c.count}
            for c in study.categories
        ],
        "roofline": [_roofline_row(r) for r in roofline.rows],
        "roofline_coverage": {
            "device": roofline.device,
            "covered_pct": pct(roofline.covered),
            "uncovered": [{"op": name, "ms": ms(ns)} for name, ns in roofline.uncovered],
            **_trust(roofline.trust),
        },
        "regions": [
            {"kind": r.kind, "name": r.name, "count": r.count, "host_ms": ms(r.host_ns),
             "device_ms": ms(r.device_ns), "operations": r.operations, "note": r.note}
            for r in study.regions
        ],
    }  # fmt: skip


def _kernel(k: KernelRow) -> dict[str, Any]:
    return {"name": k.name, "category": k.category, "count": k.count, "ms": ms(k.total_ns),
            "share_pct": pct(k.share), "mean_us": us(k.mean_ns), "min_us": us(k.least_ns),
            "max_us": us(k.most_ns), "op": k.op or None,
            "tensor_cores": k.tensor_cores}  # fmt: skip


def _op(o: OpRow) -> dict[str, Any]:
    return {"name": o.name, "shape": o.shape or None, "category": o.category, "count": o.count,
            "host_ms": ms(o.host_ns), "host_self_ms": ms(o.host_self_ns),
            "device_ms": ms(o.device_ns), "device_self_ms": ms(o.device_self_ns),
            "share_pct": pct(o.share)}  # fmt: skip


def _module(m: ModuleRow) -> dict[str, Any]:
    return {"path": m.path, "kind": m.kind, "depth": m.depth, "count": m.count,
            "host_ms": ms(m.host_ns), "device_ms": ms(m.device_ns),
            "device_self_ms": ms(m.device_self_ns), "share_pct": pct(m.share)}  # fmt: skip


def _roofline_row(r: RooflineRow) -> dict[str, Any]:
    return {"op": r.op, "shape": r.shape, "dtype": r.dtype, "count": r.count,
            "ms": ms(r.device_ns), "share_pct": pct(r.share), "flops": r.flops, "bytes": r.bytes,
            "flops_per_s": r.flops_s, "bytes_per_s": r.bytes_s,
            "tflops_per_s": r.flops_s / 1e12, "gb_per_s": r.bytes_s / 1e9,
            "flops_per_byte": r.intensity, "bound": r.bound or None,
            "attained_pct": pct(r.attained), "over_ceiling": r.over_ceiling,
            "ceiling_per_s": r.ceiling, "source": r.source,
            "note": r.note}  # fmt: skip


def _launch(study: TraceStudy) -> dict[str, Any]:
    found = study.launch
    return {
        "of": found.of or None,
        "launches": found.launches,
        "per_step": found.per_step,
        "median_latency_us": us(found.median_latency_ns),
        "p95_latency_us": us(found.p95_latency_ns),
        "median_call_us": us(found.median_call_ns),
        "linked_pct": pct(found.linked),
        "median_queue": found.median_queue,
        "empty_queue_pct": pct(found.empty_queue),
        "small_kernels_pct": pct(found.small_kernels),
        "small_kernel_time_pct": pct(found.small_kernel_time),
        "tensor_core_time_pct": pct(found.tensor_core_time),
        **_trust(found.trust),
    }


def _overlap(study: TraceStudy) -> dict[str, Any]:
    o = study.overlap
    return {"both_ms": ms(o.both_ns), "host_only_ms": ms(o.host_ns),
            "device_only_ms": ms(o.device_ns), "neither_ms": ms(o.neither_ns),
            **_trust(o.trust)}  # fmt: skip


def _memory(m: MemoryCurve, window: Window) -> dict[str, Any]:
    return {
        "device": m.device,
        "peak_bytes": m.peak_bytes,
        "peak_at_ms": ms(m.peak_ns - window.start_ns),
        "peak_step": m.peak_step or None,
        "peak_phase": m.peak_phase or None,
        "peak_op": m.peak_op or None,
        "peak_module": m.peak_module or None,
        "start_bytes": m.start_bytes,
        "end_bytes": m.end_bytes,
        "reserved_peak_bytes": m.reserved_peak_bytes if m.reserved_peak_bytes >= 0 else None,
        "events": m.events,
        "note": m.note,
        "points": [
            [ms(at - window.start_ns), allocated, reserved if reserved >= 0 else None]
            for at, allocated, reserved in m.points
        ],
    }


def _critical_path(study: TraceStudy) -> dict[str, Any]:
    path = study.critical_path
    return {
        "of": path.of or None,
        "ms": ms(path.total_ns),
        "host_ms": ms(path.host_ns),
        "device_ms": ms(path.device_ns),
        "wait_ms": ms(path.wait_ns),
        "top": [
            {"what": p.what, "side": p.side, "ms": ms(p.ns), "share_pct": pct(p.share),
             "count": p.count}
            for p in path.top
        ],
        **_trust(path.trust),
    }  # fmt: skip


def _ranks(study: TraceStudy) -> dict[str, Any]:
    found = study.ranks
    if found is None:
        return {"ranks": [], "collectives": [], "late": "", "rank_matching": None}
    return {
        "ranks": [_rank(r) for r in found.ranks],
        "collectives": [
            {"name": c.name, "group": c.group, "count": c.count, "bytes": c.bytes,
             "wire_ms": ms(c.wire_ns), "wait_ms": ms(c.wait_ns), "skew_ms": ms(c.skew_ns),
             "algorithm_gb_per_s": _giga(c.algorithm_bytes_s),
             "bus_gb_per_s": _giga(c.bus_bytes_s), "late_rank": c.late_rank}
            for c in found.collectives
        ],
        "late": found.late,
        "rank_matching": {"matched": found.matched, "unmatched": found.unmatched,
                          **_trust(found.trust)},
    }  # fmt: skip


def _rank(r: RankTime) -> dict[str, Any]:
    whole = r.window_ns
    return {
        "rank": r.rank, "label": r.label, "window_ms": ms(whole),
        "busy_ms": ms(r.busy_ns), "idle_ms": ms(r.idle_ns),
        "busy_pct": None if r.busy_ns is None or whole <= 0 else 100 * r.busy_ns / whole,
        "idle_pct": None if r.idle_ns is None or whole <= 0 else 100 * r.idle_ns / whole,
        "compute_ms": ms(r.compute_ns), "communication_ms": ms(r.communication_ns),
        "wait_ms": ms(r.wait_ns), "transfer_ms": ms(r.transfer_ns),
        "exposed_communication_ms": ms(r.exposed_communication_ns), "overlap_pct": pct(r.overlap),
        "clock_offset_ms": ms(r.clock_offset_ns),
        "late_count": None if r.wait_ns is None else r.late_count,
        "caused_wait_ms": None if r.wait_ns is None else ms(r.caused_wait_ns),
        "doing": [{"what": activity.label, "ms": ms(activity.ns)} for activity in r.doing],
    }  # fmt: skip


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9


def figures(study: TraceStudy, findings: Findings | None = None) -> Figures:
    """Return one table for everything, a row for each kernel, operator, cause, gap or rank: a
    spreadsheet filters or pivots on `section`. `ms` is what a section is sorted by. A cell that a
    section has no figure for is empty."""
    return Figures(FIGURE_COLUMNS, list(_figure_rows(data(study, (), findings))))


def _figure_rows(document: dict[str, Any]) -> Iterator[list[Any]]:
    device = document["device"]
    whole = {**device, "section": "device", "name": "all devices", "ms": device["busy_ms"],
             "share_pct": device["busy_pct"], "detail": device["why"]}  # fmt: skip
    yield [whole.get(column) for column in FIGURE_COLUMNS]
    for section, renamed in _LISTS.items():
        for entry in document[section]:
            row = {**entry, **{to: entry[key] for to, key in renamed.items()}, "section": section}
            yield [_one_line(row.get(column)) for column in FIGURE_COLUMNS]


def _one_line(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value


def trace_section(
    study: TraceStudy,
    title: str,
    *,
    name: str = "",
    sentences: Sequence[str] = (),
    charts: Sequence[Chart] = (),
    table: Table | None = None,
    notes: Sequence[str] = (),
    trust: Trust = GOOD,
    empty: str = "",
    full: bool = False,
    line: str = "",
) -> SectionOrGap:
    """Return a section. `name` is what checks call it. `full`: a terminal shows it in the full view
    only, with `line` in its place where there is one; a page folds it."""
    has_rows = table is not None and bool(table.rows)
    if not has_rows and not sentences:
        return _nothing(study, title, trust, empty)
    doubt = _doubt(study, name, trust)
    blocks: list[Block] = [Paragraph(doubt, "doubt")] if doubt else []
    blocks += [Paragraph(text) for text in sentences]
    blocks += charts
    blocks += [table] if table is not None and has_rows else []
    blocks += [Paragraph(text, "quiet") for text in notes]
    return Section(
        title=title,
        id=name.replace(" ", "_"),
        blocks=tuple(blocks),
        detail="full" if full and has_rows and not line else "brief",
        folded=full and has_rows,
        line=line,
        beside=not has_rows,
    )


def numbers(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)


def doubt_text(trust: Trust) -> str:
    if trust.confidence == "good":
        return ""
    return f"{trust.confidence}: {trust.why}" if trust.why else trust.confidence


def _nothing(study: TraceStudy, title: str, trust: Trust, empty: str) -> SectionOrGap:
    if trust.confidence == "good":
        return item(title, empty)
    # The headline says that there is no device work, and the last lines what was not recorded.
    elsewhere = not study.devices or any(code in EXPLAINED_BY_MISSING for code in trust.codes)
    return Section(
        title=title,
        blocks=(Paragraph(doubt_text(trust), "doubt"),),
        detail="full" if elsewhere else "brief",
        beside=True,
    )


def _doubt(study: TraceStudy, name: str, trust: Trust) -> str:
    """Return why a section cannot be fully trusted. A reason that a warning of the report gives is
    not repeated."""
    names = {name, *_ALSO_CALLED.get(name, ())}
    loud = [c for c in study.validation if names & {*c.affects} and c.severity != "note"]
    is_explained = any(check.id in trust.codes for check in loud)
    if not loud or (trust.confidence != "good" and not is_explained):
        return doubt_text(trust)
    worst = "unreliable" if any(c.severity == "error" for c in loud) else "doubtful"
    return f"{worst}: see the warnings above"
