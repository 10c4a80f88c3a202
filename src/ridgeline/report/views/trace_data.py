"""A trace's report as data: one JSON document, and one table for spreadsheets; and the form that
all its sections share: a doubt, sentences, a picture, a table, notes.

Figures are in the unit their name ends with: _ms milliseconds, _us microseconds, _pct percent,
_bytes, _per_s. null means that a figure is not in the trace or cannot be believed; `why` beside it
says which. Times of events (`at_ms`) count from the start of the window.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from ridgeline.records.facts import Confidence, Trust
from ridgeline.records.finding import Findings
from ridgeline.records.trace import (
    DeviceTime,
    Gap,
    IdleCause,
    Launch,
    MemoryCurve,
    Place,
    RankTime,
    RooflineRow,
    StepTime,
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
from ridgeline.report.drawings import Drawing
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
        "validation": [record_data(c) for c in study.validation],
        "device": _all_devices(study),
        "devices": [_device(d, study.window) for d in study.devices],
        "idle": {
            "ms": ms(study.idle.total_ns), "gaps": study.idle.gaps, **_trust(study.idle.trust)
        },
        "idle_causes": [_cause(c) for c in study.idle.causes],
        "gaps": [_event(g, study.window) for g in study.idle.top],
        "gap_lengths": [
            {"up_to_ms": ms(most), "gaps": count, "ms": ms(ns)}
            for most, count, ns in study.idle.histogram
        ],
        **_work(study),
        "launch": _launch(study.launch),
        "overlap": record_data(
            study.overlap, renamed={"host_ns": "host_only_ms", "device_ns": "device_only_ms"}
        ),
        "phases": [record_data(p) for p in study.phases],
        "memory": [_memory(m, study.window) for m in study.memory],
        "critical_path": record_data(
            study.critical_path, renamed={"total_ns": "ms"}, or_none=("of",)
        ),
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


_SHARES = {
    "share", "covered", "linked", "empty_queue", "small_kernels", "small_kernel_time",
    "tensor_core_time", "attained", "overlap",
}  # fmt: skip
"""Fields of records that are shares: they are shown in per cent."""


def record_data(
    record: Struct,
    *,
    renamed: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    or_none: Collection[str] = (),
) -> dict[str, Any]:
    """Return a record's fields as figures in the unit that the name of each ends with: times in
    milliseconds (or microseconds, where a field is `renamed` so), shares in per cent. The fields of
    a place and of a trust stand beside the others. An empty text of `or_none` becomes None."""
    made: dict[str, Any] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        key = (renamed or {}).get(name) or _key(name)
        if name in without:
            continue
        if isinstance(value, Trust):
            made |= _trust(value)
        elif name == "place":
            made |= _place(value)
        elif _is_time(name):
            made[key] = us(value) if key.endswith("_us") else ms(value)
        elif key.endswith("_pct"):
            made[key] = pct(value)
        elif key.endswith("_gb_per_s"):
            made[key] = None if value is None else value / 1e9
        elif isinstance(value, tuple):
            made[key] = [record_data(v) if isinstance(v, Struct) else v for v in value]
        else:
            made[key] = None if name in or_none and value == "" else value
    return made


def _is_time(name: str) -> bool:
    return name == "ns" or name.endswith("_ns")


def _key(name: str) -> str:
    if _is_time(name):
        return f"{name[:-2]}ms"
    if name.endswith("_bytes_s"):
        return f"{name.removesuffix('_bytes_s')}_gb_per_s"
    return f"{name}_pct" if name in _SHARES else name


def _trust(t: Trust) -> dict[str, Any]:
    return {"confidence": t.confidence, "why": t.why}


def _place(p: Place | None) -> dict[str, Any]:
    if p is None:
        return {"file": None, "line": None, "function": None}
    return {"file": p.file, "line": p.line, "function": p.function}


def _window(w: Window) -> dict[str, Any]:
    return {**record_data(w, without=("by_steps",)), "ms": ms(w.ns)}


def _part_pct(ns: int | None, whole_ns: int) -> float | None:
    return None if ns is None or whole_ns <= 0 else 100 * ns / whole_ns


def _all_devices(study: TraceStudy) -> dict[str, Any]:
    whole = all_devices(study)
    parts = {"busy_pct": pct(whole.part(whole.busy_ns)), "idle_pct": pct(whole.part(whole.idle_ns))}
    return {**parts, **record_data(whole)}


def _device(d: DeviceTime, window: Window) -> dict[str, Any]:
    whole = d.window.ns
    return {
        **record_data(d, without=("window", "streams", "steps")),
        "window": _window(d.window),
        "busy_pct": _part_pct(d.busy_ns, whole),
        "idle_pct": _part_pct(d.idle_ns, whole),
        "streams": [{**record_data(s), "busy_pct": _part_pct(s.busy_ns, whole)} for s in d.streams],
        "steps": [_event(s, window) for s in d.steps],
    }


def _event(event: StepTime | Gap, window: Window) -> dict[str, Any]:
    length = record_data(event, renamed={"dur_ns": "ms"}, without=("start_ns",))
    return {"at_ms": ms(event.start_ns - window.start_ns), **length}


def _cause(c: IdleCause) -> dict[str, Any]:
    return {**record_data(c), **_place(c.places[0] if c.places else None)}


def _work(study: TraceStudy) -> dict[str, Any]:
    roofline = study.roofline
    kernel = {"total_ns": "ms", "mean_ns": "mean_us", "least_ns": "min_us", "most_ns": "max_us"}
    return {
        "kernels": [record_data(k, renamed=kernel, or_none=("op",)) for k in study.kernels],
        "kernels_left_out": study.kernels_left_out,
        "ops": [record_data(o, or_none=("shape",)) for o in study.ops],
        "shapes": [record_data(o, or_none=("shape",)) for o in study.shapes],
        "modules": [record_data(m) for m in study.modules],
        "categories": [record_data(c, renamed={"device_ns": "ms"}) for c in study.categories],
        "roofline": [_roofline_row(r) for r in roofline.rows],
        "roofline_coverage": {
            **record_data(roofline, without=("rows", "uncovered")),
            "uncovered": [{"op": name, "ms": ms(ns)} for name, ns in roofline.uncovered],
        },
        "regions": [record_data(r) for r in study.regions],
    }


def _roofline_row(r: RooflineRow) -> dict[str, Any]:
    renamed = {
        "device_ns": "ms", "flops_s": "flops_per_s", "bytes_s": "bytes_per_s",
        "intensity": "flops_per_byte", "ceiling": "ceiling_per_s",
    }  # fmt: skip
    rates = {"tflops_per_s": r.flops_s / 1e12, "gb_per_s": r.bytes_s / 1e9}
    return {**record_data(r, renamed=renamed, or_none=("bound",)), **rates}


def _launch(found: Launch) -> dict[str, Any]:
    times = ("median_latency_ns", "p95_latency_ns", "median_call_ns")
    renamed = {name: name.replace("_ns", "_us") for name in times}
    return record_data(found, renamed=renamed, or_none=("of",))


def _memory(m: MemoryCurve, window: Window) -> dict[str, Any]:
    named = ("peak_step", "peak_phase", "peak_op", "peak_module")
    return {
        **record_data(m, without=("points", "peak_ns"), or_none=named),
        "peak_at_ms": ms(m.peak_ns - window.start_ns),
        "reserved_peak_bytes": m.reserved_peak_bytes if m.reserved_peak_bytes >= 0 else None,
        "points": [
            [ms(at - window.start_ns), allocated, reserved if reserved >= 0 else None]
            for at, allocated, reserved in m.points
        ],
    }


def _ranks(study: TraceStudy) -> dict[str, Any]:
    found = study.ranks
    if found is None:
        return {"ranks": [], "collectives": [], "late": "", "rank_matching": None}
    return {
        "ranks": [_rank(r) for r in found.ranks],
        "collectives": [record_data(c) for c in found.collectives],
        "late": found.late,
        "rank_matching": record_data(found, without=("ranks", "collectives", "late")),
    }


def _rank(r: RankTime) -> dict[str, Any]:
    # If waiting was not split, who came last is not known.
    unknown = {"late_count": None, "caused_wait_ms": None} if r.wait_ns is None else {}
    return {
        **record_data(r, without=("doing",)),
        "busy_pct": _part_pct(r.busy_ns, r.window_ns),
        "idle_pct": _part_pct(r.idle_ns, r.window_ns),
        **unknown,
        "doing": [{"what": activity.label, "ms": ms(activity.ns)} for activity in r.doing],
    }


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
    charts: Sequence[Chart | Drawing] = (),
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
