"""A model report for people at a terminal: the verdict first, then the numbers behind it."""

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape

from ridgeline import units
from ridgeline.records.cost import PHASES, ModuleCost, Totals
from ridgeline.records.model import ModelReport, Placement
from ridgeline.report.model_growth import plain_table, show_generation, show_sweep
from ridgeline.report.model_rows import kinds, share_of_ceiling, side_by_side
from ridgeline.report.reason import reason
from ridgeline.report.roofline import Mark, draw

MOST_MODULES = 12


def show(reports: list[ModelReport], console: Console) -> None:
    if len(reports) == 1:
        _one(reports[0], console)
    else:
        _side_by_side(reports, console)
    _roofline(reports, console)
    _notes(reports, console)
    if len(reports) == 1:
        _next_command(reports[0], console)


def _one(report: ModelReport, console: Console) -> None:
    _headline(report, console)
    _work(report, console)
    _memory(report, console)
    _modules(report, console)
    if report.generation is not None:
        show_generation(report.generation, console)
    if report.sweep is not None:
        show_sweep(report.sweep, console)


def _headline(report: ModelReport, console: Console) -> None:
    place = report.placement
    console.print(
        f"\n [bold]{escape(report.model)}[/bold]  {escape(report.target)} · "
        f"{escape(' '.join(report.inputs))} · {report.mode} · {escape(report.device.name)}"
    )
    console.print(f" [bold]{place.bottleneck}[/bold]: {escape(reason(place))}\n")
    if report.latency is None:
        console.print(f" latency     {escape(report.latency_missing)}")
        return
    s = report.latency.summary
    parts = [
        f"[bold]{units.seconds(s.median_ns / 1e9)}[/bold]"
        f" [{units.seconds(s.ci_low_ns / 1e9)}, {units.seconds(s.ci_high_ns / 1e9)}]"
    ]
    if s.p95_ns is not None:
        parts.append(f"p95 {units.seconds(s.p95_ns / 1e9)}")
    if s.p99_ns is not None:
        parts.append(f"p99 {units.seconds(s.p99_ns / 1e9)}")
    parts.append(f"{units.significant(report.samples / (s.median_ns / 1e9))} samples/s")
    parts.append(f"{s.count} samples")
    console.print(f" latency     {' · '.join(parts)}", highlight=False)
    if place.flops_per_second is not None:
        console.print(
            f" achieved    {units.flops(place.flops_per_second)} · {_of_the_ceiling(place)}",
            highlight=False,
        )


def _of_the_ceiling(place: Placement) -> str:
    ceiling = f"{place.dtype} ceiling ({units.flops(place.ceiling_flops)}, {place.ceiling_source})"
    share = share_of_ceiling(place)
    return f"{share} of the {ceiling}" if place.ceiling_state == "usable" else f"{ceiling}: {share}"


_WORK_LINES: tuple[tuple[str, Callable[[Totals], str]], ...] = (
    ("MACs", lambda t: units.count(t.macs)),
    ("FLOPs (matmul-like)", lambda t: units.flop(t.flops)),
    ("all FLOPs", lambda t: units.flop(t.all_flops)),
    ("bytes (ideal reuse)", lambda t: units.bytes_(t.bytes)),
    ("FLOP/byte", lambda t: units.significant(t.flops / t.bytes) if t.flops and t.bytes else "—"),
)


def _work(report: ModelReport, console: Console) -> None:
    p, cost = report.parameters, report.cost
    extra = [f"{units.count(p.frozen)} frozen"] if p.frozen else []
    extra += [f"{units.count(p.tied)} shared with others"] if p.tied else []
    extra += [f"{units.count(p.buffers)} in buffers"] if p.buffers else []
    extra.append(f"{units.bytes_(p.parameter_bytes)} {', '.join(sorted(p.by_dtype))}")
    console.print(
        f" parameters  {units.count(p.total)} ({p.total:,}) · {' · '.join(extra)}\n",
        highlight=False,
    )
    phases = [x for x in PHASES if cost.phases[x].calls]
    table = plain_table()
    table.add_column(" ")
    for phase in phases:
        table.add_column(phase, justify="right")
    for label, text in _WORK_LINES:
        table.add_row(f" {label}", *(text(cost.phases[x]) for x in phases))
    if any(cost.phases[x].skipped_flops for x in phases):
        causal = (cost.phases[x].flops - cost.phases[x].skipped_flops for x in phases)
        table.add_row(" …of it causal", *(units.flop(v) for v in causal))
    console.print(table)
    console.print(f" {coverage_line(report)}\n", highlight=False)


def coverage_line(report: ModelReport) -> str:
    cost = report.cost
    text = f"coverage {units.significant(cost.coverage_percent, 4)} %"
    if not cost.unformulated:
        return f"{text}, counted on {cost.backend} tensors"
    missing = ", ".join(f"{u.op} ({units.plural(u.calls, 'call')})" for u in cost.unformulated[:5])
    more = len(cost.unformulated) - 5
    return f"{text}: no formula for {missing}{f' and {more} more' if more > 0 else ''}"


def _memory(report: ModelReport, console: Console) -> None:
    memories = [report.inference_memory]
    if report.training_memory is not None:
        memories.append(report.training_memory)
    table = plain_table()
    table.add_column(" memory, predicted (each at its largest)")
    for memory in memories:
        with_optimizer = f" ({memory.optimizer})" if memory.optimizer else ""
        table.add_column(f"{memory.mode}{with_optimizer}", justify="right")
    lines = [kinds(m) for m in memories]
    for i, (label, _) in enumerate(lines[0]):
        sizes = [column[i][1] for column in lines]
        if any(sizes):
            table.add_row(f" {label}", *(units.bytes_(s) if s else "" for s in sizes))
    table.add_row(
        " [bold]peak[/bold]", *(f"[bold]{units.bytes_(m.peak_bytes)}[/bold]" for m in memories)
    )
    console.print(table)
    _peak(report, console)


def _peak(report: ModelReport, console: Console) -> None:
    memory = report.memory
    where = " ".join(x for x in (memory.peak_phase, memory.peak_module, memory.peak_op) if x)
    if where:
        console.print(f" peak of {memory.mode} at {escape(where)}", highlight=False)
    for i, tensor in enumerate(memory.largest_at_peak[:3]):
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        parts = (units.bytes_(tensor.bytes), tensor.kind, f"{shape}:{tensor.dtype}",
                 escape(tensor.module), escape(tensor.op))  # fmt: skip
        label = "largest then:" if i == 0 else " " * 13
        console.print(f"   {label} {' '.join(p for p in parts if p)}", style="dim")
    measured = report.measured_peak
    if measured is not None:
        gap = measured.peak_bytes - memory.peak_bytes
        share = 100 * gap / memory.peak_bytes if memory.peak_bytes else 0
        console.print(
            f" measured peak {units.bytes_(measured.peak_bytes)} ({share:+.1f} %"
            f"{', what kernels take inside themselves' if share >= 0.05 else ''})",
            highlight=False,
        )
    if report.fit is not None:
        fit = report.fit
        if fit.batch == 0:
            console.print(
                f" does not fit {units.bytes_(fit.budget_bytes)}: one sample of {fit.mode} needs "
                f"{units.bytes_(fit.next_peak_bytes)}",
                highlight=False,
            )
            return
        console.print(
            f" fits {units.bytes_(fit.budget_bytes)}: batch [bold]{fit.batch}[/bold] at most for "
            f"{fit.mode} ({units.bytes_(fit.peak_bytes)}); batch {fit.next_batch} is "
            f"{units.bytes_(fit.next_peak_bytes - fit.budget_bytes)} over",
            highlight=False,
        )
    console.print()


def _modules(report: ModelReport, console: Console) -> None:
    total = report.cost.phases["forward"].flops
    chosen = _worth_showing(report.cost.modules, total)
    if not chosen:
        return
    table = plain_table()
    for name in (" module", "type"):
        table.add_column(name)
    for name in ("parameters", "forward", "share", "backward", "kept for backward"):
        table.add_column(name, justify="right")
    for module in chosen:
        forward = module.phases.get("forward", Totals()).flops
        table.add_row(
            f" {escape(module.path)}",
            escape(module.type),
            units.count(module.parameters),
            units.flop(forward),
            units.percent(forward / total) if total else "—",
            units.flop(module.phases.get("backward", Totals()).flops),
            units.bytes_(module.activation_bytes) if module.activation_bytes else "",
        )
    console.print(table)
    hidden = len(report.cost.modules) - len(chosen) - 1
    if hidden > 0:
        console.print(f" and {hidden} more modules, in --json", style="dim", highlight=False)
    console.print()


def _worth_showing(modules: tuple[ModuleCost, ...], total: int) -> list[ModuleCost]:
    """The children of the model, and below them what carries a tenth of the work, in order."""
    named = [m for m in modules if m.path]
    top = [m for m in named if "." not in m.path]
    heavy = [
        m
        for m in named
        if "." in m.path and total and m.phases.get("forward", Totals()).flops >= total / 10
    ]
    picked = {m.path for m in top} | {m.path for m in heavy}
    if len(picked) > MOST_MODULES:
        by_work = sorted(
            (m for m in named if m.path in picked),
            key=lambda m: -m.phases.get("forward", Totals()).flops,
        )
        picked = {m.path for m in by_work[:MOST_MODULES]}
    return [m for m in named if m.path in picked]


def _side_by_side(reports: list[ModelReport], console: Console) -> None:
    table = plain_table()
    table.add_column(" ")
    for i, report in enumerate(reports):
        table.add_column(f"{_letter(i)}  {report.model}", justify="right")
    last = ""
    for group, label, values in side_by_side(reports):
        if last and group != last:
            table.add_row()
        last = group
        table.add_row(f" {label}", *(escape(v) for v in values))
    console.print()
    console.print(table)


def _letter(index: int) -> str:
    return chr(ord("A") + index % 26)


def _roofline(reports: list[ModelReport], console: Console) -> None:
    place = reports[0].placement
    if place.ceiling_state != "usable":
        return
    marks = [
        Mark(
            _letter(i) if len(reports) > 1 else "●",
            r.placement.intensity,
            r.placement.flops_per_second or 0.0,
        )
        for i, r in enumerate(reports)
        if r.placement.dtype == place.dtype
    ]
    lines = draw(place.ceiling_flops, place.ceiling_bytes, marks, console.width)
    if not lines:
        return
    console.print()
    for line in lines:
        console.print(f" {line}", highlight=False, markup=False, soft_wrap=True)
    console.print()


def _notes(reports: list[ModelReport], console: Console) -> None:
    """What all models share (the machine was busy) once, what belongs to one under its name."""
    each = [list(dict.fromkeys((*r.cost.notes, *r.notes))) for r in reports]
    shared = [note for note in each[0] if all(note in notes for notes in each)]
    lines = list(shared)
    for report, notes in zip(reports, each, strict=True):
        lines += [f"{report.model}: {note}" for note in notes if note not in shared]
    for line in lines:
        console.print(f" note: {escape(line)}", style="dim", highlight=False)


def _next_command(report: ModelReport, console: Console) -> None:
    inputs = "".join(f" --input {text}" for text in report.inputs)
    target = f"ridgeline model {report.target}{inputs if len(inputs) < 60 else ''}"
    if report.mode == "inference" and report.training_memory is not None:
        console.print(f" a training step of it:  {escape(target)} --train --measure")
    elif report.sweep is None:
        console.print(f" how it grows:  {escape(target)} --train --sweep batch=1,2,4,8")
