"""Losses or outputs kept with their graphs: each holds a whole forward in memory."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import (
    HORIZON,
    ROOM,
    Growth,
    each_step,
    growth,
    host_bytes,
    until_when,
)
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._source_lines import kept_lines
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.trace import Place
from ridgeline.source.kept_tensors import Kept

UNRUN = 1.0
"""Autograd nodes a step that no backward runs: an operator or more whose graph only memory sees."""
NODE_BYTES = 600.0
"""Of the host, for each node of a graph that is kept after its backward: 670 measured, over 3,000
losses of ten linear layers."""
SPENT_BYTES = 64 * 1024
"""What the graph of a loss holds on the device, at most, once its backward has run: the loss."""
LEAST_NODES = 0.005
"""Of the host's memory, after a usual number of steps, by nodes alone."""
SEEN_BYTES = 256 * 1024
"""A step: what a resident size must show, if it is there."""

RULE = Rule(id="graph-kept", family="memory", budget="memory")


def look(case: Case) -> Iterator[Finding]:
    grown = growth(case)
    traced = case.traced_memory
    every = [one for one in kept_lines(case) if not one.guessed]
    unrun = traced.unrun_nodes if traced is not None and traced.backwards else 0.0
    all_run = traced is not None and traced.backwards and traced.nodes > 0 and unrun < UNRUN
    if grown is None or grown.bytes_per_step < SPENT_BYTES or not all_run:
        lines = [one for one in every if one.graph]
    else:
        lines = [one for one in every if one.graph and not one.spent]
    if grown is None:
        yield from _nodes_alone(case, lines)
        return
    if not lines and (every or unrun < UNRUN):  # what another line keeps is memory-leak's
        return
    line = lines[0] if lines else None
    evidence = [each_step(grown, case.step_ms), *grown.evidence, *_source(line)]
    if unrun >= UNRUN:
        text = f"{units.significant(unrun)} a step are made and never run"
        evidence.append(Evidence(what="autograd nodes", text=text, value=unrun))
    yield make_finding(
        RULE,
        claim=_claim(grown, line, case.step_ms),
        share=0.0,
        memory=grown.filled,
        bound=1.0,
        evidence=evidence,
        place=_place(line) or _allocates(case),
        change=_change(line),
        confidence=_confidence(grown, line, unrun),
        doubt="" if line is not None else "no line was found that keeps them",
    )


def _nodes_alone(case: Case, lines: Sequence[Kept]) -> Iterator[Finding]:
    """Losses kept after their backward: the activations are gone, the nodes are not. Too little to
    be seen in a short run, and enough to be killed for in a long one."""
    traced = case.traced_memory
    if not lines or traced is None or not traced.backwards:
        return
    line, each = lines[0], traced.nodes * NODE_BYTES
    filled = min(each * HORIZON / (host_bytes(case) or ROOM), 1.0)
    seen = case.memory.host_growth_bytes_per_step
    if filled < LEAST_NODES or (seen is not None and each >= SEEN_BYTES and seen < each / 2):
        return
    nodes = units.significant(traced.nodes)
    yield make_finding(
        RULE,
        claim=f"`{line.container}` keeps the autograd graph of every step: {nodes} nodes, about "
        f"{units.bytes_(each)} of the host's memory each",
        share=0.0,
        memory=filled,
        bound=1.0,
        evidence=(
            Evidence(what="autograd nodes", text=f"{nodes} a step", value=traced.nodes),
            Evidence(what="growth", text=f"{units.bytes_(each)} a step, {units.bytes_(NODE_BYTES)} "
                     "a node", value=each, source="estimated"),
            *_source(line),
        ),
        place=_place(line),
        change=_change(line),
        confidence="low" if line.renewed else "medium",
        doubt="too little to be seen in the steps measured",
    )  # fmt: skip


def _claim(grown: Growth, line: Kept | None, step_ms: float) -> str:
    what = f"`{line.container}` keeps" if line is not None else "something keeps"
    each = units.bytes_(grown.bytes_per_step)
    until = until_when(grown, step_ms)
    end = f": {until}" if until else ", without end"
    return f"{what} the autograd graph of every step, {each} each{end}"


def _confidence(grown: Growth, line: Kept | None, unrun: float) -> Confidence:
    if line is None:
        return "medium" if grown.confirmed else "low"
    return "high" if grown.sure or unrun >= UNRUN else "medium"


def _source(line: Kept | None) -> tuple[Evidence, ...]:
    if line is None:
        return ()
    text = f"{line.text}: nothing takes `{line.value}` off its graph"
    return (Evidence(what="source", text=text, source="read"),)


def _place(line: Kept | None) -> Place | None:
    return Place(file=line.file, line=line.line, function=line.function) if line else None


def _allocates(case: Case) -> Place | None:
    """The function that allocates what stays, where it is one."""
    stays = case.traced_memory.stays if case.traced_memory is not None else ()
    return next((one.place for one in stays if one.place is not None), None)


def _change(line: Kept | None) -> str:
    if line is None:
        return "# keep x.detach() of each result instead of x, or .item() of a number"
    if line.detached:
        return line.detached.partition("  #")[0]
    return f"# {line.value}: with .detach(), before `{line.container}` keeps it"
