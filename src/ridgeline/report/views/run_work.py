"""The work of a run, as its page shows it: operators below their ceilings, modules, kernels,
collectives, and the lines of Python."""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ridgeline import units
from ridgeline.records.run_page import ModuleWork, PythonStacks, RunPage, StackNode
from ridgeline.records.trace import RooflineRow, TraceStudy
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Paragraph,
    Row,
    Section,
    Table,
    row,
)
from ridgeline.report.drawings import IciclePlot, Measure
from ridgeline.report.numbers import NOTHING, share, share_text, time
from ridgeline.report.plain import kernel_name
from ridgeline.report.views import trace_work

MAX_NAMED_MODELS = 3
"""Models whose parameters are counted below the tree of modules."""


def work_sections(page: RunPage) -> Iterator[Section]:
    """Yield the sections on the traced steps and on Python."""
    blocks = list(_operators(page))
    if (tree := module_plot(page.modules)) is not None:
        seen = page.capture.modules if page.capture is not None else ()
        sizes = [
            f"{one.name} has {units.count(one.parameters)} parameters "
            f"({units.bytes_(one.parameter_bytes)})."
            for one in seen[:MAX_NAMED_MODELS]
            if one.parameters
        ]
        blocks.append(replace(tree, caption=" ".join((tree.caption, *sizes))))
    if page.study is not None:
        blocks += _tables(page.study)
    if blocks:
        yield Section(title="Operators", blocks=tuple(blocks))
    if page.ranks is not None and page.study is not None:
        across = trace_work.collectives(page.study, page.ranks)
        if isinstance(across, Section):
            yield Section(title="Collectives", blocks=across.blocks)


def _operators(page: RunPage) -> Iterator[Block]:
    plot = trace_work.roofline_plot(page.roofline)
    if plot is not None:
        yield plot
    rows = page.roofline.rows
    if rows:
        yield Paragraph("Operators of a traced step, by their inputs; the place is the function "
                        "that calls most of them.", "quiet")  # fmt: skip
        yield Table(columns=_COLUMNS, rows=tuple(map(_operator_row, rows)))
    if page.roofline.modules:
        table = Table(
            columns=(Column("module", "name"), *_COLUMNS[2:]),
            rows=tuple(_operator_row(r, has_inputs=False) for r in page.roofline.modules),
        )
        yield Section(title="Modules, without those inside", blocks=(table,), folded=True)


_COLUMNS = (
    Column("operator", "name"), Column("inputs", "name"), Column("calls"), Column("time"),
    Column("share"), Column("mean"), Column("FLOP/B"), Column("rate"), Column("of its roof"),
    Column("bound by", "words"), Column("place", "place"),
)  # fmt: skip


def _operator_row(found: RooflineRow, *, has_inputs: bool = True) -> Row:
    is_memory = found.bound == "memory"
    rate = units.bandwidth(found.bytes_s) if is_memory else units.flops(found.flops_s)
    attained = "over" if found.over_ceiling else share_text(found.attained)
    return row(
        kernel_name(found.op),
        *([found.shape] if has_inputs else []),
        Cell(f"{found.count:,}", found.count),
        Cell(time(found.device_ns), found.device_ns),
        Cell(share_text(found.share), found.share),
        Cell(time(found.mean_ns), found.mean_ns),
        Cell(units.significant(found.intensity) if found.bytes else NOTHING, found.intensity),
        Cell(rate if found.bytes else NOTHING, found.flops_s),
        Cell(attained, found.attained),
        found.limit or NOTHING,
        trace_work.place_text(found.place),
    )


def module_plot(modules: Sequence[ModuleWork]) -> IciclePlot | None:
    """Return the tree of modules; None where the trace shows none."""
    if not modules:
        return None
    children = Counter(m.parent for m in modules)
    # A module that stands alone in another says nothing: that one is a wrapper or a container.
    inner = [m for m in modules if m.parent >= 0 and children[m.parent] > 1] or list(modules)
    largest = max(inner, key=lambda module: module.ns)
    whole = sum(m.ns for m in modules if m.parent < 0) or 1.0
    measures = (
        Measure(name="time", unit="ns", values=tuple(round(m.ns) for m in modules)),
        Measure(name="FLOPs", unit="count", values=tuple(round(m.flops) for m in modules)),
        Measure(name="bytes", unit="bytes", values=tuple(round(m.bytes) for m in modules)),
    )
    return IciclePlot(
        title=f"{largest.name} takes {share(largest.ns / whole)} of the model's time, forward and "
        "backward",
        names=tuple(m.name for m in modules),
        parents=tuple(m.parent for m in modules),
        measures=measures,
        whole="model",
        caption=trace_work.TREE_CAPTION,
    )


def _tables(study: TraceStudy) -> Iterator[Block]:
    """Yield the tables of the trace's own page."""
    for section in (trace_work.kernels(study, None), trace_work.categories(study)):
        if isinstance(section, Section):
            yield Section(title=section.title, blocks=section.blocks, folded=True)


def _samples_alone(nodes: Sequence[StackNode]) -> dict[int, int]:
    """Return the samples of the main process in each of the program's own lines, without those in
    other own lines that it calls."""
    alone: dict[int, int] = {}
    holder: list[int] = []  # the nearest own line at or above each node
    for i, node in enumerate(nodes):
        above = holder[node.parent] if node.parent >= 0 else -1
        if node.is_own:
            alone[i] = node.main
            if above >= 0:
                alone[above] -= node.main
        holder.append(i if node.is_own else above)
    return alone


def python_plot(stacks: PythonStacks) -> IciclePlot | None:
    """Return the stacks as a figure in which callers stand above what they call."""
    nodes = stacks.nodes
    if not nodes:
        return None
    title = "Where Python spends its time"
    alone = _samples_alone(nodes)
    if stacks.main and any(alone.values()):
        costliest = max(alone, key=alone.__getitem__)
        line = nodes[costliest]
        title = (
            f"{share(alone[costliest] / stacks.main)} of the program's time is in "
            f"{line.file.rpartition('/')[2]}:{line.line} and the library code that it calls"
        )
    rest = (
        f" {units.plural(stacks.left_out, 'rare function')} not drawn." if stacks.left_out else ""
    )
    return IciclePlot(
        title=title,
        names=tuple(
            f"{n.function} {n.file.rpartition('/')[2]}:{n.line}" if n.is_own else n.function
            for n in nodes
        ),
        parents=tuple(n.parent for n in nodes),
        measures=(
            Measure(name="main process", unit="s",
                    values=tuple(round(n.main * stacks.interval_s, 3) for n in nodes)),
            Measure(name="workers", unit="s",
                    values=tuple(round(n.worker * stacks.interval_s, 3) for n in nodes)),
        ),
        notes=tuple(f"{n.file}:{n.line}" if n.is_own else n.file for n in nodes),
        set_off=tuple(i for i, n in enumerate(nodes) if n.is_own),
        set_off_name="a line of the program's own code",
        whole="all samples",
        caption="Callers stand above what they call; blue: lines of the program's own code. Click "
        f"a function to zoom in; Escape zooms out.{rest}",
    )  # fmt: skip
