"""Memory that grows: graphs kept from step to step, gradients never zeroed, and other leaks."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import (
    USUAL_ROOM_BYTES,
    USUAL_STEPS,
    Growth,
    each_step,
    growth,
    held_by,
    held_in,
    host_bytes,
    kept_lines,
    kept_where_made,
    place_of_line,
    until_when,
)
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules._user_code import located, place_at, source_of, user_sources
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.run import OptimizerSeen
from ridgeline.records.step_memory import HeldTensors
from ridgeline.records.step_work import StaysBehind
from ridgeline.records.trace import Place
from ridgeline.report.plain import function_label
from ridgeline.source.calls import SourceCall, all_calls
from ridgeline.source.kept_tensors import Kept

MAX_NAMED_HOLDERS = 2
MAX_NAMED_LINES = 4
"""Lines named that may keep what stays."""

MEMORY_LEAK = Rule(id="memory-leak", family="memory", budget="memory")


def memory_leak(case: Case) -> Iterator[Finding]:
    """Memory that grows with every step, for another reason than kept graphs."""
    grown = growth(case)
    if grown is None or any(graph_kept(case)):
        return
    stays = case.traced_memory.stays if case.traced_memory is not None and grown.sure else ()
    lines = _candidates(case, stays)
    line = lines[0] if lines else None
    if not grown.confirmed and (line is None or line.guessed):
        return
    stayed = (stay.place for stay in stays if stay.place is not None)
    yield make_finding(
        MEMORY_LEAK,
        claim=_leak_claim(grown, lines, case.step_ms, next(iter(held_in(case)), None)),
        share=0.0,
        memory=grown.filled,
        bound=1.0,
        evidence=[
            each_step(grown, case.step_ms),
            *grown.evidence,
            *_blocks(stays),
            *_holders(case),
            *_leak_source(lines),
        ],
        place=place_of_line(line) or next(stayed, None),
        change=_leak_change(line),
        confidence=_leak_confidence(grown, line),
        doubt=_doubt(grown, lines),
    )


def _candidates(case: Case, stays: tuple[StaysBehind, ...]) -> list[Kept]:
    """Return the lines that may keep it, the likeliest first. If the trace knows which function
    allocates most of what stays, these are lines that keep something made in it; else they are what
    the source alone says."""
    most = stays[0].place if stays else None
    made = kept_where_made(case, most) if most is not None else ()
    data = _keeps_data_alone(case)
    found = [one for one in made if not one.graph or (data and not one.spent)]
    found = [one for one in found if not one.guessed] or found
    kept = [one for one in kept_lines(case) if not one.graph or (data and not one.spent)]
    return _seen_to_hold(case, found or kept)


def _keeps_data_alone(case: Case) -> bool:
    """Return whether the tensors that are kept take their own memory only, so that `.detach()`
    saves next to nothing. Either a backward ran every graph of the traced steps and freed what the
    graphs hold; or one block stays of each step, and that block is the kept tensor itself: what a
    graph holds would be further blocks."""
    traced = case.traced_memory
    if traced is None or not traced.backwards or traced.nodes <= 0:
        return False
    retained = any("retain_graph" in source.text for source in user_sources(case))
    freed = traced.unrun_nodes < MIN_UNRUN_NODES and not retained
    return freed or (len(traced.stays) == 1 and traced.stays[0].blocks < MIN_BLOCKS_WITH_GRAPH)


def _seen_to_hold(case: Case, lines: Sequence[Kept]) -> list[Kept]:
    """Return those of the lines whose container was seen to grow in the live program; all of them
    if none was seen."""
    names = {_last_name(held.name) for held in held_in(case) if held.kind != "objects"}
    return [line for line in lines if not names or _last_name(line.container) in names]


def _last_name(container: str) -> str:
    """Return `cache` for self.cache and for cache[…]."""
    return container.partition("[")[0].rpartition(".")[2]


def _holders(case: Case) -> list[Evidence]:
    """Return what was seen to gain entries while memory grew."""
    rows = []
    for held in held_in(case)[:MAX_NAMED_HOLDERS]:
        gain = units.significant(held.per_step)
        what = "nodes" if held.holder == "tensor" else "entries"
        text = f"{held_by(held)}: {gain} {what} a step"
        rows.append(measured("held by", text, held.bytes_per_step))
    return rows


def _leak_claim(grown: Growth, lines: list[Kept], step_ms: float, held: HeldTensors | None) -> str:
    each = units.bytes_(grown.bytes_per_step)
    until = until_when(grown, step_ms)
    end = f", and {until}" if until else ", without end"
    if _is_unsettled(lines):
        function = function_label(lines[0].function, lines[0].file)
        return f"{function} keeps {each} of every step{end}"
    if lines:
        return f"`{lines[0].container}` keeps {each} of every step{end}"
    if held is not None and held.name:
        return f"`{held.name}` keeps {each} of every step{end}"
    return f"every step leaves {each} behind{end}"


def _is_unsettled(lines: list[Kept]) -> bool:
    """Return whether several lines of one function may keep it, and none surely keeps a tensor."""
    return len(lines) > 1 and lines[0].guessed and len({(k.file, k.function) for k in lines}) == 1


def _leak_confidence(grown: Growth, line: Kept | None) -> Confidence:
    if not grown.sure:
        return "low"
    return "high" if line is not None and not line.guessed else "medium"


def _doubt(grown: Growth, lines: list[Kept]) -> str:
    if grown.ran_out and len(lines) <= 1:
        return ""
    if not grown.sure:
        return "only the process's resident size grows: it may be the host's allocator"
    if len(lines) > 1:
        named = lines[1:MAX_NAMED_LINES]
        others = ", ".join(f"line {line.line} (`{line.container}`)" for line in named)
        more = " or another" if len(lines) > MAX_NAMED_LINES else ""
        return f"it may be {others}{more} that keeps it"
    if not lines or lines[0].guessed:
        return "a buffer that is meant to fill grows the same way at first"
    return ""


def _blocks(stays: tuple[StaysBehind, ...]) -> list[Evidence]:
    if not stays:
        return []
    most = stays[0]
    by = f", allocated by {', '.join(most.ops)}" if most.ops else ""
    text = f"{units.significant(most.blocks)} a step of {units.bytes_(most.block_bytes)}{by}"
    return [measured("blocks that stay", text, most.block_bytes)]


def _leak_source(lines: list[Kept]) -> list[Evidence]:
    shown = lines[:MAX_NAMED_LINES] if _is_unsettled(lines) else lines[:1]
    number = "line {}: ".format if len(shown) > 1 else "".format
    return [
        read("source", f"{number(line.line)}{line.text}: nothing empties `{line.container}`")
        for line in shown
    ]


def _leak_change(line: Kept | None) -> str:
    if line is None:
        return "# keep a bounded number: deque(maxlen=…), or clear() at the end of an epoch"
    if line.how == "key":
        return f"{line.container}.pop(oldest)  # drop what is no longer read"
    return f"{line.container} = deque(maxlen=…)  # as many as are ever read"


MIN_BLOCKS_WITH_GRAPH = 1.5
"""Blocks of each step that stay, from which on some of them belong to a graph."""
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

GRAPH_KEPT = Rule(id="graph-kept", family="memory", budget="memory")


def graph_kept(case: Case) -> Iterator[Finding]:
    """Losses or outputs kept with their graphs: each holds a whole forward in memory."""
    grown = growth(case)
    traced = case.traced_memory
    every = [line for line in kept_lines(case) if not line.guessed]
    unrun = traced.unrun_nodes if traced is not None and traced.backwards else 0.0
    data = grown is not None and grown.bytes_per_step >= SPENT_BYTES and _keeps_data_alone(case)
    lines = [line for line in every if line.graph and not data]
    if grown is None:
        yield from _nodes_alone(case, lines)
        return
    lines = _seen_to_hold(case, lines)
    kinds = {held.kind for held in held_in(case)}
    if not lines and kinds and "graph" not in kinds:  # something else was seen to grow
        return
    if not lines and (every or unrun < MIN_UNRUN_NODES):  # memory-leak reports other lines
        return
    line = lines[0] if lines else None
    evidence = [each_step(grown, case.step_ms), *grown.evidence, *_holders(case)]
    evidence += _graph_source(line)
    if unrun >= MIN_UNRUN_NODES:
        text = f"{units.significant(unrun)} a step are made and never run"
        evidence.append(measured("autograd nodes", text, unrun))
    yield make_finding(
        GRAPH_KEPT,
        claim=_graph_claim(grown, line, case.step_ms, _held_graph(case)),
        share=0.0,
        memory=grown.filled,
        bound=1.0,
        evidence=evidence,
        place=place_of_line(line) or _allocates(case),
        change=_graph_change(line),
        confidence=_graph_confidence(grown, line, unrun),
        doubt="" if line is not None or _held_graph(case) else "no line was found that keeps them",
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
        GRAPH_KEPT,
        claim=f"`{line.container}` keeps the autograd graph of every step: {nodes} nodes, about "
        f"{units.bytes_(each)} of the host's memory each",
        share=0.0,
        memory=filled,
        bound=1.0,
        evidence=(
            measured("autograd nodes", f"{nodes} a step", traced.nodes),
            Evidence(what="growth", text=f"{units.bytes_(each)} a step, {units.bytes_(NODE_BYTES)} "
                     "a node", value=each, source="estimated"),
            *_graph_source(line),
        ),
        place=place_of_line(line),
        change=_graph_change(line),
        confidence="low" if line.renewed else "medium",
        doubt="too little to be seen in the steps measured",
    )  # fmt: skip


def _held_graph(case: Case) -> str:
    """Return the name of what was seen to hold a graph that grows; "" if nothing was."""
    return next((held.name for held in held_in(case) if held.kind == "graph"), "")


def _graph_claim(grown: Growth, line: Kept | None, step_ms: float, held: str) -> str:
    name = line.container if line is not None else held
    what = f"`{name}` keeps" if name else "something keeps"
    each = units.bytes_(grown.bytes_per_step)
    until = until_when(grown, step_ms)
    end = f": {until}" if until else ", without end"
    return f"{what} the autograd graph of every step, {each} each{end}"


def _graph_confidence(grown: Growth, line: Kept | None, unrun: float) -> Confidence:
    if line is None:
        return "medium" if grown.confirmed else "low"
    return "high" if grown.sure or unrun >= MIN_UNRUN_NODES else "medium"


def _graph_source(line: Kept | None) -> tuple[Evidence, ...]:
    if line is None:
        return ()
    text = f"{line.text}: nothing takes `{line.value}` off its graph"
    return (read("source", text),)


def _allocates(case: Case) -> Place | None:
    """Return the function that allocates what stays, if it is known."""
    stays = case.traced_memory.stays if case.traced_memory is not None else ()
    return next((one.place for one in stays if one.place is not None), None)


def _graph_change(line: Kept | None) -> str:
    if line is None:
        return "# keep x.detach() of each result instead of x, or .item() of a number"
    if line.detached:
        return line.detached.partition("  #")[0]
    return f"# {line.value}: with .detach(), before `{line.container}` keeps it"


MIN_CHECKED_STEPS = 5
"""Steps that must be checked before the rule speaks: a program that clears its gradients every few
steps has done so by then."""

GRADIENTS_NOT_ZEROED = Rule(
    id="gradients-not-zeroed", family="correctness", budget="memory", needs=("capture",)
)


def gradients_not_zeroed(case: Case) -> Iterator[Finding]:
    """Gradients that are never cleared: each step moves the parameters by the sum of all gradients
    so far."""
    capture = case.capture
    for optimizer in capture.optimizers if capture is not None else ():
        checked, kept = optimizer.gradients_checked, optimizer.gradients_kept
        if checked < MIN_CHECKED_STEPS or kept < checked:
            continue
        place, name = _step_call(case, optimizer)
        yield make_finding(
            GRADIENTS_NOT_ZEROED,
            claim=f"the gradients of {optimizer.name} were cleared after none of {checked} steps: "
            "each backward adds to those of the steps before",
            share=0.0,
            bound=1.0,
            evidence=[
                measured(
                    "gradients of the step before",
                    f"still there in {kept} of {checked} steps checked",
                    kept,
                )
            ],
            place=place,
            change=f"{name}.zero_grad()  # after each {name}.step()",
            confidence="high",
            wrong_results=True,
        )


def _step_call(case: Case, optimizer: OptimizerSeen) -> tuple[Place | None, str]:
    """Return the line where the optimizer steps, and the optimizer's name in that line."""
    place = place_at(optimizer.place)
    source = source_of(case, place)
    if place is None or source is None:
        return place, "optimizer"
    called = next((c for c in all_calls(source, ("step",)) if c.line == place.line), None)
    return located(case, place.file, place.line), _name(case, called)


def _name(case: Case, called: SourceCall | None) -> str:
    """Return the optimizer's name in `optimizer.step()` or in `scaler.step(optimizer)`."""
    if called is None or not called.on:
        return "optimizer"
    scaled = case.capture is not None and case.capture.flags.gradient_scaler
    return called.first if scaled and called.first else called.on
