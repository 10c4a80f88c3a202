"""Says what a model costs, and how close it comes to what the machine can do."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ridgeline import units
from ridgeline.records.cost import (
    PHASES,
    Cost,
    MeasuredPeak,
    Memory,
    ModuleCost,
    Totals,
)
from ridgeline.records.latency import Generation, Latency
from ridgeline.records.model import ModelReport, Placement, Sweep
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Command,
    Commands,
    Document,
    Figures,
    Item,
    Labelled,
    Paragraph,
    Report,
    RooflineChart,
    RooflineMark,
    Section,
    Span,
    Table,
    item,
    row,
)
from ridgeline.report.reasons import explain, reason_data
from ridgeline.report.views import memory_plan

SCHEMA = "ridgeline.cost.study/1"
CONVENTIONS = {
    "macs": "multiply-accumulates of matmul-like operators; attention over the full square",
    "flops": "2 per MAC, plus FFTs and matrix factorisations",
    "all_flops": "flops, plus elementwise work, norms, softmax and reductions",
    "causal_flops": "flops without what causal attention skips above the diagonal",
    "bytes": "forward, ideal reuse: each operator reads inputs once and writes outputs once",
    "coverage": "percent of those bytes that belong to operators with a formula",
    "scope": "what this process runs (per rank), for the whole batch given",
    "recompute": "forward work done again in backward: checkpointing, and the scores that fused "
    "attention does not keep",
}
MAX_MODULES = 12
MAX_UNFORMULATED = 5
MIN_MODULE_SHARE = 0.1
"""A module below the model's own children gets a row from this share of the forward FLOPs on."""
MIN_EXPLAINED_PERCENT = 25.0
"""Below this share of the measured time, the ceilings say little about what limits it."""
MAX_EXPLAINED_PERCENT = 110.0
"""Above this share of the measured time, caches must have helped."""
MIN_R_SQUARED = 0.5
"""Below this, no law is printed."""
MAX_INPUTS_LENGTH = 60
"""Longer inputs are left out of the command to type next."""
_CEILING_DOUBTS = {
    "disturbed": "The ceilings were measured while the machine was busy: the class may be wrong",
    "exceeded": "The model is faster than the ceilings: they are too low, the class may be wrong",
}
_NO_SHARE = {
    "disturbed": "not known: the ceiling was measured on a busy machine",
    "exceeded": "not known: ceiling exceeded, probably measured on a busy machine",
}


def model_report(reports: Sequence[ModelReport]) -> Report:
    return Report(
        document=lambda: document(reports), data=lambda: data(reports),
        figures=lambda: figures(reports), page=lambda: _page(reports),
    )  # fmt: skip


def _page(reports: Sequence[ModelReport]) -> Document:
    from ridgeline.report.views import model_page  # it builds on this module

    return model_page.page(reports)


def document(reports: Sequence[ModelReport]) -> Document:
    if len(reports) == 1:
        return _one_model(reports[0])
    return Document(
        answer=(Span(f"{len(reports)} models side by side"),),
        blocks=(side_by_side(reports), *_roofline(reports), *notes(reports)),
    )


def _one_model(report: ModelReport) -> Document:
    place = report.placement
    planned = report.planned
    blocks: list[Block] = [
        *([memory_plan.planned_section(planned)] if planned else []),
        Paragraph((Span(place.bottleneck, bold=True), Span(f": {bottleneck_reason(place)}"))),
        Labelled((*_speed_items(report), _parameters_item(report))),
        Section(title="", blocks=(_work_table(report.cost), Paragraph(_coverage(report.cost)))),
        Section(title="", blocks=(_memory_table(report), *_peak(report))),
        Section(title="", blocks=tuple(_modules(report))),
    ]
    if report.generation is not None:
        blocks.append(_generation(report.generation))
    if report.sweep is not None:
        blocks.append(_sweep(report.sweep))
    return Document(
        answer=(Span(report.model),),
        about=(report.target, " ".join(report.inputs), report.mode, report.device.name),
        blocks=(*blocks, *_roofline([report]), *notes([report]), *_next_command(report)),
        title=f"{report.model}: {place.bottleneck}",
        footer=SCHEMA,
    )


def explained_percent(place: Placement) -> float | None:
    """Return the share of the measured time that the largest floor accounts for."""
    if not place.measured_ms:
        return None
    return 100 * max(place.roofline_ms, place.overhead_ms) / place.measured_ms


def bottleneck_reason(place: Placement) -> str:
    """Return why a model has its class, in one sentence with the numbers that decided it."""
    text = (
        f"operators limited by arithmetic need {units.seconds(place.compute_limited_ms / 1e3)}, "
        f"those limited by memory {units.seconds(place.memory_limited_ms / 1e3)}, issuing "
        f"{units.plural(place.operators, 'operator')} {units.seconds(place.overhead_ms / 1e3)}"
    )
    explained = explained_percent(place)
    if place.measured_ms is None or explained is None:
        return f"{text}; not timed"
    if place.host_limited:
        text += "; the host was still issuing when the device had finished"
    measured = units.seconds(place.measured_ms / 1e3)
    if place.ceiling_state != "usable":
        return f"{text}; {measured} measured. {_CEILING_DOUBTS[place.ceiling_state]}"
    if explained > MAX_EXPLAINED_PERCENT:
        return f"{text}; {measured} measured: less than through memory each time, caches helped"
    weak = ": something else takes the rest" if explained < MIN_EXPLAINED_PERCENT else ""
    return f"{text}; {measured} measured, {explained:.0f} % explained{weak}"


def share_of_ceiling(place: Placement) -> str:
    """Return the share of the ceiling, such as 38 %, or why there is no share."""
    if place.percent_of_ceiling is not None:
        return f"{units.significant(place.percent_of_ceiling, 2)} %"
    return _NO_SHARE.get(place.ceiling_state, "—")


def _short_share(place: Placement) -> str:
    if place.percent_of_ceiling is None and place.ceiling_state in _NO_SHARE:
        return "not known"
    return share_of_ceiling(place)


def _speed_items(report: ModelReport) -> Iterator[Item]:
    if report.latency is None:
        yield item("latency", report.latency_missing)
        return
    s, place = report.latency.summary, report.placement
    parts = [
        f"{units.seconds(s.median_ns / 1e9)}"
        f" [{units.seconds(s.ci_low_ns / 1e9)}, {units.seconds(s.ci_high_ns / 1e9)}]"
    ]
    for name, value in (("p95", s.p95_ns), ("p99", s.p99_ns)):
        parts += [f"{name} {units.seconds(value / 1e9)}"] if value is not None else []
    parts.append(f"{units.significant(report.samples / (s.median_ns / 1e9))} samples/s")
    parts.append(f"{s.count} samples")
    yield item("latency", " · ".join(parts))
    if place.flops_per_second is not None:
        rate = units.flops(place.ceiling_flops)
        ceiling = f"{place.dtype} ceiling ({rate}, {place.ceiling_source})"
        share = share_of_ceiling(place)
        is_usable = place.ceiling_state == "usable"
        of = f"{share} of the {ceiling}" if is_usable else f"{ceiling}: {share}"
        yield item("achieved", f"{units.flops(place.flops_per_second)} · {of}")


def _parameters_item(report: ModelReport) -> Item:
    p = report.parameters
    parts = [f"{units.count(p.total)} ({p.total:,})"]
    parts += [f"{units.count(p.frozen)} frozen"] if p.frozen else []
    parts += [f"{units.count(p.tied)} shared with others"] if p.tied else []
    parts += [f"{units.count(p.buffers)} in buffers"] if p.buffers else []
    parts.append(f"{units.bytes_(p.parameter_bytes)} {', '.join(sorted(p.by_dtype))}")
    return item("parameters", " · ".join(parts))


_WORK_ROWS: tuple[tuple[str, Callable[[Totals], str]], ...] = (
    ("MACs", lambda t: units.count(t.macs)),
    ("FLOPs (matmul-like)", lambda t: units.flop(t.flops)),
    ("all FLOPs", lambda t: units.flop(t.all_flops)),
    ("bytes (ideal reuse)", lambda t: units.bytes_(t.bytes)),
    ("FLOP/byte", lambda t: units.significant(t.flops / t.bytes) if t.flops and t.bytes else "—"),
)


def _work_table(cost: Cost) -> Table:
    phases = [phase for phase in PHASES if cost.phases[phase].calls]
    rows = [row(label, *(text(cost.phases[x]) for x in phases)) for label, text in _WORK_ROWS]
    if any(cost.phases[x].skipped_flops for x in phases):
        causal = (cost.phases[x].flops - cost.phases[x].skipped_flops for x in phases)
        rows.append(row("…of it causal", *(units.flop(v) for v in causal)))
    columns = (Column("work", "words"), *(Column(phase) for phase in phases))
    return Table(columns=columns, rows=tuple(rows))


def _coverage(cost: Cost) -> str:
    text = f"coverage {units.significant(cost.coverage_percent, 4)} %"
    if not cost.unformulated:
        return f"{text}, counted on {cost.backend} tensors"
    shown = cost.unformulated[:MAX_UNFORMULATED]
    missing = ", ".join(f"{u.op} ({units.plural(u.calls, 'call')})" for u in shown)
    more = len(cost.unformulated) - len(shown)
    return f"{text}: no formula for {missing}{f' and {more} more' if more > 0 else ''}"


def _memory_table(report: ModelReport) -> Table:
    memories = [report.inference_memory]
    if report.training_memory is not None:
        memories.append(report.training_memory)
    names = [f"{m.mode}{f' ({m.optimizer})' if m.optimizer else ''}" for m in memories]
    kinds = [memory_kinds(m) for m in memories]
    rows = []
    for i, (label, _) in enumerate(kinds[0]):
        sizes = [column[i][1] for column in kinds]
        if any(sizes):
            rows.append(row(label, *(units.bytes_(s) if s else "" for s in sizes)))
    peaks = (Cell(units.bytes_(m.peak_bytes), m.peak_bytes) for m in memories)
    rows.append(row("peak", *peaks, bold=True))
    first = Column("memory, predicted (each at its largest)", "words")
    return Table(columns=(first, *map(Column, names)), rows=tuple(rows))


def memory_kinds(memory: Memory) -> list[tuple[str, int]]:
    return [
        ("parameters", memory.parameters_bytes),
        ("buffers", memory.buffers_bytes),
        ("inputs", memory.inputs_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer state", memory.optimizer_bytes),
        ("activations", memory.activations_bytes),
        ("temporaries at peak", memory.temporaries_bytes),
        ("cuBLAS workspaces", memory.workspaces_bytes),
    ]


def _peak(report: ModelReport) -> Iterator[Block]:
    memory = report.memory
    where = " ".join(x for x in (memory.peak_phase, memory.peak_module, memory.peak_op) if x)
    if where:
        yield Paragraph(f"peak of {memory.mode} at {where}")
    largest = []
    for tensor in memory.largest_at_peak[:3]:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        parts = (units.bytes_(tensor.bytes), tensor.kind, f"{shape}:{tensor.dtype}",
                 tensor.module, tensor.op)  # fmt: skip
        largest.append(" ".join(part for part in parts if part))
    if largest:
        yield Labelled((item("largest then", *largest, level="quiet"),))
    if memory.unpredicted:
        kernels = units.word_list(memory.unpredicted)
        yield Paragraph(f"not predicted: what {kernels} take inside themselves")
    measured = report.measured_peak
    if measured is not None:
        gap = measured.peak_bytes - memory.peak_bytes
        share = 100 * gap / memory.peak_bytes if memory.peak_bytes else 0
        why = ", what kernels take inside themselves" if share >= 0.05 else ""
        yield Paragraph(f"measured peak {units.bytes_(measured.peak_bytes)} ({share:+.1f} %{why})")
    fit = report.fit
    if fit is not None and fit.batch == 0:
        yield Paragraph(
            f"does not fit {units.bytes_(fit.budget_bytes)}: one sample of {fit.mode} needs "
            f"{units.bytes_(fit.next_peak_bytes)}"
        )
    elif fit is not None:
        yield Paragraph(
            f"fits {units.bytes_(fit.budget_bytes)}: batch {fit.batch} at most for "
            f"{fit.mode} ({units.bytes_(fit.peak_bytes)}); batch {fit.next_batch} is "
            f"{units.bytes_(fit.next_peak_bytes - fit.budget_bytes)} over"
        )


def _modules(report: ModelReport) -> Iterator[Block]:
    total = report.cost.phases["forward"].flops
    chosen = _shown_modules(report.cost.modules, total)
    if not chosen:
        return
    columns = (
        Column("module", "name"), Column("type", "words"), Column("parameters"), Column("forward"),
        Column("share"), Column("backward"), Column("kept for backward"),
    )  # fmt: skip
    rows = []
    for module in chosen:
        forward = _forward_flops(module)
        rows.append(
            row(
                module.path,
                module.type,
                units.count(module.parameters),
                Cell(units.flop(forward), forward),
                units.percent(forward / total) if total else "—",
                units.flop(module.phases.get("backward", Totals()).flops),
                units.bytes_(module.activation_bytes) if module.activation_bytes else "",
            )
        )
    hidden = max(len(report.cost.modules) - len(chosen) - 1, 0)
    yield Table(columns=columns, rows=tuple(rows), left_out=hidden, rest="in --json")


def _forward_flops(module: ModuleCost) -> int:
    return module.phases.get("forward", Totals()).flops


def _shown_modules(modules: tuple[ModuleCost, ...], total: int) -> list[ModuleCost]:
    """Return the children of the model, and below them the modules that carry a tenth of the work,
    in their order."""
    named = [m for m in modules if m.path]
    picked = [
        m
        for m in named
        if "." not in m.path or (total and _forward_flops(m) >= MIN_MODULE_SHARE * total)
    ]
    heaviest = sorted(picked, key=lambda m: -_forward_flops(m))[:MAX_MODULES]
    kept = {m.path for m in heaviest}
    return [m for m in picked if m.path in kept]


def _generation(g: Generation) -> Block:
    token = f"{g.uncached_token_ms:.3g} ms without KV cache"
    if g.cached_token_ms is not None:
        token = f"{g.cached_token_ms:.3g} ms with KV cache, {token}"
    if g.cache_speedup:
        token += f" ({g.cache_speedup:.2g} ×)"
    text = (
        f"first token {g.first_token_ms:.3g} ms after a prompt of {g.prompt_tokens} · each further "
        f"token {token} · {units.plural(g.tokens, 'token')}, batch {g.batch}"
    )
    return Labelled((item("generation", text), *(item("", n, level="quiet") for n in g.notes)))


_SWEPT: dict[str, tuple[str, Callable[[float], str]]] = {
    "flops": ("FLOPs", units.flop),
    "peak_bytes": ("peak memory", units.bytes_),
    "median_ms": ("latency", lambda value: units.seconds(value / 1e3)),
}


def _sweep(sweep: Sweep) -> Block:
    rows = []
    for point in sweep.points:
        values = [(_SWEPT[name][1], getattr(point, name)) for name in sweep.laws]
        cells = ("—" if value is None else unit(value) for unit, value in values)
        rows.append(row(f"{point.size}", *cells))
    columns = (Column(sweep.dimension, "words"), *(Column(_SWEPT[name][0]) for name in sweep.laws))
    return Section(
        title="",
        blocks=(
            Table(columns=columns, rows=tuple(rows)),
            *(Paragraph(_law(sweep, name)) for name in sweep.laws),
            *(Paragraph(note, "quiet") for note in sweep.notes),
        ),
    )


def _law(sweep: Sweep, name: str) -> str:
    law, (label, unit) = sweep.laws[name], _SWEPT[name]
    worst = 100 * law.worst_relative_error
    fit = "exact" if law.exact else f"R² {law.r_squared:.4f}, worst {worst:.1f} % off"
    if law.r_squared < MIN_R_SQUARED and not law.exact:
        return f"{label}: no law fits ({fit}); a quieter machine or more sizes may help"
    text = f"{label}: {law.form}, {law.equation} ({fit})"
    predicted, observed = sweep.predicted.get(name), sweep.observed.get(name)
    if predicted is None:
        return text
    text += f"; {sweep.dimension} {sweep.next_size} predicted {unit(predicted)}"
    if observed:
        text += f", found {unit(observed)} ({100 * (observed / predicted - 1):+.1f} %)"
    return text


def _roofline(reports: Sequence[ModelReport]) -> Iterator[Block]:
    place = reports[0].placement
    if place.ceiling_state != "usable":
        return
    yield RooflineChart(
        marks=tuple(
            RooflineMark(
                letter=_letter(i) if len(reports) > 1 else "●",
                intensity=r.placement.intensity,
                flops_per_s=r.placement.flops_per_second or 0.0,
                tip=r.model,
            )
            for i, r in enumerate(reports)
            if r.placement.dtype == place.dtype
        ),
        peaks=(place.ceiling_flops,),
        bandwidth=place.ceiling_bytes,
    )


def notes(reports: Sequence[ModelReport]) -> Iterator[Block]:
    """Return notes that all models share once, and others under the name of their model."""
    each = [list(dict.fromkeys(_notes_of(report))) for report in reports]
    shared = [note for note in each[0] if all(note in notes for notes in each)]
    lines = list(shared)
    for report, own in zip(reports, each, strict=True):
        lines += [f"{report.model}: {note}" for note in own if note not in shared]
    if lines:
        yield Labelled(tuple(item("note", line, level="quiet") for line in lines))


def _notes_of(report: ModelReport) -> list[str]:
    return [*report.cost.notes, *report.notes, *map(explain, report.disturbances)]


def _next_command(report: ModelReport) -> Iterator[Block]:
    inputs = "".join(f" --input {text}" for text in report.inputs)
    inputs = inputs if len(inputs) < MAX_INPUTS_LENGTH else ""
    typed = f"ridgeline model {report.target}{inputs} --train"
    if report.mode == "inference" and report.training_memory is not None:
        yield Commands((Command("a training step of it", f"{typed} --measure"),))
    elif report.sweep is None:
        yield Commands((Command("how it grows", f"{typed} --sweep batch=1,2,4,8"),))


def _letter(index: int) -> str:
    return chr(ord("A") + index % 26)


def side_by_side(reports: Sequence[ModelReport]) -> Table:
    """Return a row for each figure and a column for each model, without rows that are empty for
    all."""
    columns = [{(group, label): value for group, label, value in _figure_rows(r)} for r in reports]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows, last = [], ""
    for group, label in keys:
        values = [column.get((group, label), Cell("")) for column in columns]
        if any(cell.text for cell in values):
            rows.append(row(label, *_with_bars(values), gap=bool(last) and group != last))
            last = group
    names = (Column(f"{_letter(i)}  {report.model}") for i, report in enumerate(reports))
    return Table(columns=(Column("", "words"), *names), rows=tuple(rows))


def _with_bars(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a row, with bars where all of them are numbers."""
    numbers = [cell.number for cell in cells if cell.number is not None]
    most = max(numbers, default=0.0)
    if len(numbers) < len(cells) or most <= 0:
        return list(cells)
    return [replace(cell, bar=max(cell.number or 0.0, 0.0) / most) for cell in cells]


Figure = tuple[str, str, Cell]
"""Group, label and value of a figure."""


def _figure(group: str, label: str, value: str, number: float | None = None) -> Figure:
    return group, label, Cell(value, number if value else None)


def _figure_rows(report: ModelReport) -> list[Figure]:
    """Return (group, label, value), the same labels in the same order for every model."""
    p = report.parameters
    identity = [
        _figure("model", "target", report.target),
        _figure("model", "input", " ".join(report.inputs)),
        _figure("model", "parameters", units.count(p.total), p.total),
        _figure("model", "trainable", units.count(p.trainable), p.trainable),
        _figure("model", "arithmetic", report.cost.dtype),
    ]
    return [*identity, *_work_figures(report), *_memory_figures(report), *_speed_figures(report)]


def _work_figures(report: ModelReport) -> list[Figure]:
    cost = report.cost
    forward = cost.phases["forward"]

    def flop(label: str, flops: float) -> Figure:
        return _figure("work", label, units.flop(flops), flops)

    causal = forward.flops - forward.skipped_flops if forward.skipped_flops else 0
    intensity = _intensity(cost)
    return [
        _figure("work", "MACs, forward", units.count(forward.macs), forward.macs),
        flop("FLOPs, forward", forward.flops),
        _figure("work", "…causal part alone", units.flop(causal) if causal else "", causal),
        *(flop(f"FLOPs, {p}", cost.phases[p].flops) for p in PHASES[1:3]),
        flop("all FLOPs, forward", forward.all_flops),
        _figure("work", "bytes, forward", units.bytes_(forward.bytes), forward.bytes),
        _figure("work", "intensity", f"{units.significant(intensity)} FLOP/B", intensity),
        _figure("work", "coverage", f"{units.significant(cost.coverage_percent, 4)} %"),
    ]


def _intensity(cost: Cost) -> float:
    forward = cost.phases["forward"]
    return forward.flops / forward.bytes if forward.bytes else 0.0


def _memory_figures(report: ModelReport) -> list[Figure]:
    memory = report.memory

    def size(label: str, held: int) -> Figure:
        return _figure("memory", label, units.bytes_(held) if held else "", held)

    rows = [size(f"{name}, bytes", held) for name, held in memory_kinds(memory)]
    rows.append(size(f"peak, {memory.mode}", memory.peak_bytes))
    if report.mode == "inference" and report.training_memory is not None:
        training = report.training_memory
        rows.append(size(f"peak, training ({training.optimizer})", training.peak_bytes))
    if report.measured_peak is not None:
        rows.append(size("peak, measured", report.measured_peak.peak_bytes))
    if report.fit is not None:
        label = f"largest batch in {units.bytes_(report.fit.budget_bytes)}"
        rows.append(_figure("memory", label, str(report.fit.batch), report.fit.batch))
    return rows


def _speed_figures(report: ModelReport) -> list[Figure]:
    place = report.placement
    rows = [_figure("speed", "latency", "—")]
    if report.latency is not None:
        s = report.latency.summary
        low, high = units.seconds(s.ci_low_ns / 1e9), units.seconds(s.ci_high_ns / 1e9)
        rate = report.samples_per_s
        achieved = place.flops_per_second or 0.0
        rows = [
            _figure("speed", "latency", units.seconds(s.median_ns / 1e9), s.median_ns),
            _figure("speed", "95 % interval", f"{low} – {high}"),
            _figure("speed", "p95", "—" if s.p95_ns is None else units.seconds(s.p95_ns / 1e9),
                    s.p95_ns),
            _figure("speed", "throughput", f"{units.significant(rate)} samples/s", rate),
            _figure("speed", "achieved", units.flops(achieved), achieved),
            _figure("speed", "of the ceiling", _short_share(place), place.percent_of_ceiling),
        ]  # fmt: skip
    return [*rows, _figure("speed", "limited by", place.bottleneck)]


def figures(reports: Sequence[ModelReport]) -> Figures:
    """Return one row for each figure, named by its path in the JSON document, and a column for each
    model."""
    columns = [dict(_scalars(model_data(r))) for r in reports]
    paths = dict.fromkeys(path for column in columns for path in column)
    return Figures(
        ("figure", *(r.model for r in reports)),
        [[path, *(column.get(path, "") for column in columns)] for path in paths],
    )


def _scalars(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return every scalar of a document, named like macs.forward; lists are left to JSON."""
    if isinstance(value, dict):
        for key, held in value.items():
            if key != "conventions":
                yield from _scalars(held, f"{path}.{key}" if path else str(key))
    elif isinstance(value, str | int | float):
        yield path, value


def data(reports: Sequence[ModelReport]) -> dict[str, Any]:
    made = [model_data(report) for report in reports]
    return made[0] if len(made) == 1 else {"schema": SCHEMA, "models": made}


def model_data(report: ModelReport) -> dict[str, Any]:
    """Return one model as JSON. Figures are in the unit their name ends with; null is "not
    measured", and a reason stands beside it."""
    cost = report.cost
    forward = cost.phases["forward"]
    training = report.training_memory
    return {
        "schema": SCHEMA,
        "target": report.target,
        "model": report.model,
        "inputs": list(report.inputs),
        "samples": report.samples,
        "mode": report.mode,
        "device": {"kind": report.device.kind, "name": report.device.name},
        "dtype": cost.dtype,
        "backend": cost.backend,
        "parameters": report.parameters.total,
        "trainable_parameters": report.parameters.trainable,
        "frozen_parameters": report.parameters.frozen,
        "tied_parameters": report.parameters.tied,
        "parameters_by_dtype": report.parameters.by_dtype,
        "buffers": report.parameters.buffers,
        "macs": _by_phase(cost, "macs"),
        "flops": _by_phase(cost, "flops"),
        "all_flops": _by_phase(cost, "all_flops"),
        "causal_flops": {p: t.flops - t.skipped_flops for p, t in cost.phases.items()},
        "coverage": cost.coverage_percent,
        "bytes": forward.bytes,
        "bytes_by_phase": _by_phase(cost, "bytes"),
        "intensity": _intensity(cost),
        "memory": _memory_data(report.memory, report.measured_peak),
        "memory_by_mode": {
            "inference": _memory_data(report.inference_memory, None),
            "training": _memory_data(training, None) if training else None,
        },
        "latency": _latency_data(report.latency, report.latency_missing),
        "throughput_per_second": _throughput(report),
        "bottleneck": report.placement.bottleneck,
        "bottleneck_reason": bottleneck_reason(report.placement),
        "roofline": msgspec.to_builtins(report.placement),
        "modules": [_module_data(m) for m in cost.modules],
        "ops": _ops_data(cost),
        "unformulated": [msgspec.to_builtins(u) for u in cost.unformulated],
        "sweep": msgspec.to_builtins(report.sweep),
        "fit": msgspec.to_builtins(report.fit),
        "planned": msgspec.to_builtins(report.planned),
        "generation": msgspec.to_builtins(report.generation),
        "notes": _notes_of(report),
        "disturbances": [reason_data(one) for one in report.disturbances],
        "conventions": CONVENTIONS,
    }


def _by_phase(cost: Cost, quantity: str) -> dict[str, int]:
    values: dict[str, int] = {p: int(getattr(cost.phases[p], quantity)) for p in PHASES}
    return {**values, "total": sum(values.values())}


def _throughput(report: ModelReport) -> float | None:
    if report.latency is None:
        return None
    return report.samples / (report.latency.summary.median_ns / 1e9)


def _memory_data(memory: Memory, measured: MeasuredPeak | None) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(memory)
    made["measured_peak_bytes"] = measured.peak_bytes if measured else None
    made["gap_bytes"] = measured.peak_bytes - memory.peak_bytes if measured else None
    made["measured_by"] = measured.method if measured else None
    return made


def _latency_data(latency: Latency | None, missing: str) -> dict[str, Any]:
    names = ("median", "ci_low", "ci_high", "mean", "std", "min", "max", "iqr", "p95", "p99")
    if latency is None:
        return {**{f"{n}_ms": None for n in names}, "samples": 0, "reason": missing}
    made: dict[str, Any] = {}
    for name in names:
        value = getattr(latency.summary, f"{name}_ns")
        made[f"{name}_ms"] = None if value is None else value / 1e6
    issue = latency.issue_median_ns
    return {
        **made,
        "samples": latency.summary.count,
        "samples_ms": [s / 1e6 for s in latency.samples_ns],
        "warmup_ms": [s / 1e6 for s in latency.warmup_ns],
        "calls_per_sample": latency.block_calls,
        "steady": latency.steady,
        "clock": latency.clock,
        "wall_median_ms": latency.wall_median_ns / 1e6,
        "issue_median_ms": None if issue is None else issue / 1e6,
        "refused": list(latency.summary.refused),
        "warnings": list(latency.warnings),
    }


def _module_data(module: ModuleCost) -> dict[str, Any]:
    def by_phase(quantity: str) -> dict[str, int]:
        return {p: int(getattr(module.phases.get(p, Totals()), quantity)) for p in PHASES[:3]}

    return {
        "path": module.path,
        "type": module.type,
        "calls": module.calls,
        "parameters": module.parameters,
        "macs": by_phase("macs"),
        "flops": by_phase("flops"),
        "bytes": by_phase("bytes"),
        "activation_bytes": module.activation_bytes,
    }


def _ops_data(cost: Cost) -> list[dict[str, Any]]:
    """Return operators over all modules, the heaviest first."""
    merged: dict[tuple[str, str, str, bool], Totals] = {}
    for op in cost.ops:
        key = (op.op, op.phase, op.dtype, op.formulated)
        merged[key] = merged.get(key, Totals()) + op.totals
    rows = [
        {"op": k[0], "phase": k[1], "dtype": k[2], "formulated": k[3], **msgspec.to_builtins(t)}
        for k, t in merged.items()
    ]
    return sorted(rows, key=lambda r: (-r["flops"], -r["bytes"]))
