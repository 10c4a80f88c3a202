"""The page of one or several models: where parameters, arithmetic, memory and time go, as figures
beside the tables."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.records.cost import PHASES, Memory, ModuleCost, Totals
from ridgeline.records.model import ModelReport
from ridgeline.records.trace import RooflineRow
from ridgeline.report.document import (
    Block,
    Document,
    KeyNumber,
    KeyNumbers,
    Part,
    RooflineChart,
    Section,
    Span,
    SplitChart,
)
from ridgeline.report.drawings import (
    IciclePlot,
    Measure,
    RooflineGroup,
    RooflinePlot,
    RooflinePoint,
)
from ridgeline.report.numbers import share
from ridgeline.report.views import model, trace_work

MAX_NODES = 2_000
"""Modules in a tree; a model of 100 layers has some 1,200."""


def page(reports: Sequence[ModelReport]) -> Document:
    document = model.document(reports)
    if len(reports) == 1:
        (report,) = reports
        place = report.placement
        figures: tuple[Block, ...] = (
            KeyNumbers(tuple(_key_numbers(report))), *_roofline(reports), *_modules(report),
            *_phases(report), *_memory(report),
        )  # fmt: skip
        return Document(
            answer=(Span(f"{report.model} is {place.bottleneck}"),),
            about=document.about,
            blocks=(*figures, Section(title="All figures", blocks=_without_charts(document))),
            title=document.title,
            footer=document.footer,
        )
    blocks: list[Block] = [model.side_by_side(reports), *_roofline(reports)]
    for report in reports:
        parts: tuple[Block, ...] = (*_modules(report), *_phases(report), *_memory(report))
        blocks.append(Section(title=report.model, blocks=parts))
    return Document(
        answer=document.answer, about=document.about, blocks=(*blocks, *model.notes(reports)),
        title=f"{' · '.join(r.model for r in reports)} side by side", footer=model.SCHEMA,
    )  # fmt: skip


def _without_charts(document: Document) -> tuple[Block, ...]:
    """Return the blocks without the small roofline, which the page draws larger."""
    return tuple(b for b in document.blocks if not isinstance(b, RooflineChart))


def _key_numbers(report: ModelReport) -> Iterator[KeyNumber]:
    forward = report.cost.phases["forward"]
    yield KeyNumber("parameters", units.count(report.parameters.total),
                    units.bytes_(report.parameters.parameter_bytes))  # fmt: skip
    yield KeyNumber("FLOP of a forward", units.flop(forward.flops))
    yield KeyNumber("peak memory", units.bytes_(report.memory.peak_bytes), report.mode)
    if report.latency is not None:
        s = report.latency.summary
        low, high = units.seconds(s.ci_low_ns / 1e9), units.seconds(s.ci_high_ns / 1e9)
        yield KeyNumber("latency", units.seconds(s.median_ns / 1e9), f"95 % {low} to {high}")
        yield KeyNumber("throughput", f"{units.significant(report.samples_per_s)} samples/s")
    if report.placement.percent_of_ceiling is not None:
        yield KeyNumber("of the ceiling", model.share_of_ceiling(report.placement))


def _roofline(reports: Sequence[ModelReport]) -> Iterator[RooflinePlot]:
    """Yield the operators at the most that the ceilings allow, and each model where it was
    measured."""
    first = reports[0]
    rows = [row for report in reports for row in report.operators]
    several = len(reports) > 1
    groups = [
        RooflineGroup(
            name=f"operators of {report.model}" if several else "operators",
            points=tuple(map(_operator_point, report.operators[: trace_work.MAX_POINTS])),
        )
        for report in reports
    ]
    models = RooflineGroup(
        name="models" if several else "the whole model",
        points=tuple(_model_point(r) for r in reports if r.placement.flops_per_second),
    )
    groups = [models, *groups] if several else [*groups, models]
    if not any(group.points for group in groups):
        return
    roofs = trace_work.roofs(first.device.ceilings, {row.dtype for row in rows}, rows)
    yield RooflinePlot(
        title=_roofline_title(reports),
        roofs=roofs,
        groups=tuple(group for group in groups if group.points),
        caption="Pale marks are operators at the most that the ceilings allow: their size is the "
        "least time they take. The whole model stands where it was measured. Solid roofs were "
        "measured here, dashed ones are the datasheet's, dotted ones were measured on a busy "
        "machine and judge nothing.",
    )


def _roofline_title(reports: Sequence[ModelReport]) -> str:
    if len(reports) > 1:
        return "Where the models and their operators stand below the ceilings"
    rows = reports[0].operators
    bound = sum(row.share for row in rows if row.bound == "memory")
    if reports[0].placement.ceiling_state != "usable":
        return "Intensity of each operator; the ceilings of this device are not to be relied on"
    return f"Memory limits operators that take {share(bound)} of the least time"


def _operator_point(row: RooflineRow) -> RooflinePoint:
    notes = (f"{row.shape}, {row.dtype}", f"{units.plural(row.count, 'call')}",
             f"first in {row.module}" if row.module else "")  # fmt: skip
    return RooflinePoint(
        name=row.op, intensity=row.intensity, rate=row.flops_s, ns=row.device_ns, share=row.share,
        kind=row.bound, is_bound=True, notes=tuple(note for note in notes if note),
    )  # fmt: skip


def _model_point(report: ModelReport) -> RooflinePoint:
    place = report.placement
    kinds = {"compute-bound": "compute", "memory-bound": "memory", "overhead-bound": "overhead"}
    known = place.ceiling_state == "usable"
    return RooflinePoint(
        name=report.model,
        intensity=place.intensity,
        rate=place.flops_per_second or 0.0,
        ns=(place.measured_ms or 0.0) * 1e6,
        share=1.0,
        kind=kinds[place.bottleneck] if known else "",  # type: ignore[arg-type]
        attained=place.percent_of_ceiling / 100 if place.percent_of_ceiling is not None else None,
        notes=(" ".join(report.inputs), report.mode),
    )


def _modules(report: ModelReport) -> Iterator[IciclePlot]:
    """Yield the tree of modules, measured by parameters, arithmetic, bytes, least time and what is
    kept for backward."""
    kept: list[ModuleCost] = []
    number: dict[str, int] = {}
    for module in sorted(report.cost.modules, key=lambda m: m.path.count(".") + bool(m.path)):
        parent = module.path.rpartition(".")[0]
        if (module.path and parent not in number) or len(kept) >= MAX_NODES:
            continue
        number[module.path] = len(kept)
        kept.append(module)
    if len(kept) < trace_work.MIN_TREE_NODES:
        return
    phases = PHASES if report.mode == "training" else PHASES[:1]
    floors = report.module_floor_ns

    def sums(quantity: str) -> tuple[float, ...]:
        return tuple(
            sum(getattr(m.phases.get(p, Totals()), quantity) for p in phases) for m in kept
        )

    inner = [m for m in kept if m.path]
    largest = max(inner, key=lambda m: m.parameters)
    whole = max(kept[0].parameters, 1)
    yield IciclePlot(
        title=f"The module {largest.path} holds {share(largest.parameters / whole)} of the "
        "parameters",
        names=tuple(m.path.rpartition(".")[2] or report.model for m in kept),
        parents=tuple(
            number[m.path.rpartition(".")[0]] if m.path else -1 for m in kept
        ),
        notes=tuple(f"{m.type}, {units.plural(m.calls, 'call')}" for m in kept),
        measures=(
            Measure(name="parameters", unit="count", values=tuple(m.parameters for m in kept)),
            Measure(name="FLOPs", unit="count", values=sums("all_flops")),
            Measure(name="bytes moved", unit="bytes", values=sums("bytes")),
            Measure(name="least time", unit="ns",
                    values=tuple(round(floors.get(m.path, 0.0)) for m in kept)),
            Measure(name="kept for backward", unit="bytes",
                    values=tuple(m.activation_bytes for m in kept)),
        ),
        whole="model",
        caption=trace_work.TREE_CAPTION,
    )  # fmt: skip


def _phases(report: ModelReport) -> Iterator[Section]:
    counted = [(phase, report.cost.phases[phase].all_flops) for phase in PHASES]
    whole = sum(flops for _, flops in counted)
    known = [(phase, flops) for phase, flops in counted if flops]
    if whole and len(known) > 1:
        largest, most = max(known, key=lambda pair: pair[1])
        title = f"The {largest} takes {share(most / whole)} of a training step's arithmetic"
        parts = tuple(
            Part(phase, flops, f"{units.flop(flops)}, {share(flops / whole)}")
            for phase, flops in known
        )
        yield Section(title=title, blocks=(SplitChart(parts=parts, title=title),))


def _memory(report: ModelReport) -> Iterator[Section]:
    """Yield what memory holds at its peak, by kind, in each mode."""
    memories = [report.inference_memory]
    if report.training_memory is not None:
        memories.append(report.training_memory)
    for memory in memories:
        held = [(kind, size) for kind, size in memory.at_peak.items() if size]
        if held:
            parts = tuple(
                Part(kind, size, f"{units.bytes_(size)}, {share(size / memory.peak_bytes)}")
                for kind, size in sorted(held, key=lambda pair: -pair[1])
            )
            title = _peak_title(memory)
            yield Section(title=title, blocks=(SplitChart(parts=parts, title=title),))


def _peak_title(memory: Memory) -> str:
    where = " ".join(x for x in (memory.peak_phase, memory.peak_module, memory.peak_op) if x)
    peak = f"Memory of {memory.mode} peaks at {units.bytes_(memory.peak_bytes)}"
    return f"{peak}, at {where}" if where else peak
