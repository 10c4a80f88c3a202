"""Memory that grows with every step, for another reason than kept graphs."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import Growth, each_step, growth, until_when
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._source_lines import kept_lines, kept_where_made
from ridgeline.diagnosis.rules.graph_kept import look as graphs_kept
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.step_work import StaysBehind
from ridgeline.records.trace import Place
from ridgeline.report.names import function_label
from ridgeline.source.kept_tensors import Kept

MOST_NAMED = 4
"""Lines that may keep what stays."""

RULE = Rule(id="memory-leak", family="memory", budget="memory")


def look(case: Case) -> Iterator[Finding]:
    grown = growth(case)
    if grown is None or any(True for _ in graphs_kept(case)):
        return
    stays = case.traced_memory.stays if case.traced_memory is not None and grown.sure else ()
    lines = _candidates(case, stays)
    line = lines[0] if lines else None
    if not grown.confirmed and (line is None or line.guessed):
        return
    yield make_finding(
        RULE,
        claim=_claim(grown, lines, case.step_ms),
        share=0.0,
        memory=grown.filled,
        bound=1.0,
        evidence=[each_step(grown, case.step_ms), *grown.evidence, *_blocks(stays),
                  *_source(lines)],
        place=_place(line, stays),
        change=_change(line),
        confidence=_confidence(grown, line),
        doubt=_doubt(grown, lines),
    )  # fmt: skip


def _candidates(case: Case, stays: tuple[StaysBehind, ...]) -> list[Kept]:
    """The likeliest first. Where the trace knows which function allocates most of what stays, those
    that keep something made in it; else what the source alone says."""
    most = stays[0].place if stays else None
    made = kept_where_made(case, most) if most is not None else ()
    found = [one for one in made if not one.graph]
    found = [one for one in found if not one.guessed] or found
    return found or [one for one in kept_lines(case) if not one.graph]


def _claim(grown: Growth, lines: list[Kept], step_ms: float) -> str:
    each = units.bytes_(grown.bytes_per_step)
    until = until_when(grown, step_ms)
    end = f", and {until}" if until else ", without end"
    if _unsettled(lines):
        return f"{_function(lines[0])} keeps {each} of every step{end}"
    if lines:
        return f"`{lines[0].container}` keeps {each} of every step{end}"
    return f"every step leaves {each} behind{end}"


def _unsettled(lines: list[Kept]) -> bool:
    """Several lines of one function may keep it, and the source calls none of them a tensor."""
    return len(lines) > 1 and lines[0].guessed and len({(k.file, k.function) for k in lines}) == 1


def _function(line: Kept) -> str:
    return function_label(line.function, line.file)


def _confidence(grown: Growth, line: Kept | None) -> Confidence:
    if not grown.sure:
        return "low"
    return "high" if line is not None and not line.guessed else "medium"


def _doubt(grown: Growth, lines: list[Kept]) -> str:
    if grown.ran_out and len(lines) <= 1:
        return ""
    if not grown.sure:
        return "only the process's resident size grows: it may be the host's allocator"
    if len(lines) > 1:
        others = ", ".join(f"line {one.line} (`{one.container}`)" for one in lines[1:MOST_NAMED])
        return f"it may be {others}{' or another' if len(lines) > MOST_NAMED else ''} that keeps it"
    if not lines or lines[0].guessed:
        return "a buffer that is meant to fill grows the same way at first"
    return ""


def _blocks(stays: tuple[StaysBehind, ...]) -> list[Evidence]:
    if not stays:
        return []
    most = stays[0]
    by = f", allocated by {', '.join(most.ops)}" if most.ops else ""
    text = f"{units.significant(most.blocks)} a step of {units.bytes_(most.block_bytes)}{by}"
    return [Evidence(what="blocks that stay", text=text, value=float(most.block_bytes))]


def _source(lines: list[Kept]) -> list[Evidence]:
    shown = lines[:MOST_NAMED] if _unsettled(lines) else lines[:1]
    return [
        Evidence(
            what="source",
            text=f"{f'line {one.line}: ' if len(shown) > 1 else ''}{one.text}: nothing empties "
            f"`{one.container}`",
            source="read",
        )
        for one in shown
    ]


def _place(line: Kept | None, stays: tuple[StaysBehind, ...]) -> Place | None:
    if line is not None:
        return Place(file=line.file, line=line.line, function=line.function)
    return next((one.place for one in stays if one.place is not None), None)


def _change(line: Kept | None) -> str:
    if line is None:
        return "# keep a bounded number: deque(maxlen=…), or clear() at the end of an epoch"
    if line.how == "key":
        return f"{line.container}.pop(oldest)  # drop what is no longer read"
    return f"{line.container} = deque(maxlen=…)  # as many as are ever read"
