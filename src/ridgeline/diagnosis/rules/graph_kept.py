"""Losses or outputs kept with their graphs: each holds a whole forward in memory."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import (
    USUAL_ROOM_BYTES,
    USUAL_STEPS,
    Growth,
    each_step,
    growth,
    host_bytes,
    kept_lines,
    place_of_line,
    until_when,
)
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.trace import Place
from ridgeline.source.kept_tensors import Kept

MIN_UNRUN_NODES = 1.0
"""Autograd nodes a step that no backward runs: the graph of an operator or more is only kept."""
NODE_BYTES = 600.0
"""Host memory of a node of a graph that is kept after its backward: 670 bytes were measured over
3,000 losses of ten linear layers."""
SPENT_BYTES = 64 * 1024
"""The most that the graph of a loss holds on the device once its backward has run: the loss."""
MIN_NODES_SHARE = 0.005
"""Share of the host's memory that nodes alone must fill after a usual number of steps."""
VISIBLE_BYTES = 256 * 1024
"""Growth a step that a resident size must show if it is there."""

RULE = Rule(id="graph-kept", family="memory", budget="memory")


def look(case: Case) -> Iterator[Finding]:
    grown = growth(case)
    traced = case.traced_memory
    every = [line for line in kept_lines(case) if not line.guessed]
    unrun = traced.unrun_nodes if traced is not None and traced.backwards else 0.0
    all_run = (
        traced is not None and traced.backwards and traced.nodes > 0 and unrun < MIN_UNRUN_NODES
    )
    if grown is None or grown.bytes_per_step < SPENT_BYTES or not all_run:
        lines = [line for line in every if line.graph]
    else:
        lines = [line for line in every if line.graph and not line.spent]
    if grown is None:
        yield from _nodes_alone(case, lines)
        return
    if not lines and (every or unrun < MIN_UNRUN_NODES):  # memory-leak reports other lines
        return
    line = lines[0] if lines else None
    evidence = [each_step(grown, case.step_ms), *grown.evidence, *_source(line)]
    if unrun >= MIN_UNRUN_NODES:
        text = f"{units.significant(unrun)} a step are made and never run"
        evidence.append(measured("autograd nodes", text, unrun))
    yield make_finding(
        RULE,
        claim=_claim(grown, line, case.step_ms),
        share=0.0,
        memory=grown.filled,
        bound=1.0,
        evidence=evidence,
        place=place_of_line(line) or _allocates(case),
        change=_change(line),
        confidence=_confidence(grown, line, unrun),
        doubt="" if line is not None else "no line was found that keeps them",
    )


def _nodes_alone(case: Case, lines: Sequence[Kept]) -> Iterator[Finding]:
    """Yield a finding for losses kept after their backward: the activations are gone, the nodes are
    not. That is too little to be seen in a short run, and enough to end a long one."""
    traced = case.traced_memory
    if not lines or traced is None or not traced.backwards:
        return
    line, each = lines[0], traced.nodes * NODE_BYTES
    filled = min(each * USUAL_STEPS / (host_bytes(case) or USUAL_ROOM_BYTES), 1.0)
    seen = case.memory.host_growth_bytes_per_step
    hidden = seen is not None and each >= VISIBLE_BYTES and seen < each / 2
    if filled < MIN_NODES_SHARE or hidden:
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
            measured("autograd nodes", f"{nodes} a step", traced.nodes),
            Evidence(what="growth", text=f"{units.bytes_(each)} a step, {units.bytes_(NODE_BYTES)} "
                     "a node", value=each, source="estimated"),
            *_source(line),
        ),
        place=place_of_line(line),
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
    return "high" if grown.sure or unrun >= MIN_UNRUN_NODES else "medium"


def _source(line: Kept | None) -> tuple[Evidence, ...]:
    if line is None:
        return ()
    text = f"{line.text}: nothing takes `{line.value}` off its graph"
    return (read("source", text),)


def _allocates(case: Case) -> Place | None:
    """Return the function that allocates what stays, if it is known."""
    stays = case.traced_memory.stays if case.traced_memory is not None else ()
    return next((one.place for one in stays if one.place is not None), None)


def _change(line: Kept | None) -> str:
    if line is None:
        return "# keep x.detach() of each result instead of x, or .item() of a number"
    if line.detached:
        return line.detached.partition("  #")[0]
    return f"# {line.value}: with .detach(), before `{line.container}` keeps it"
