"""Memory that grows with every step, for another reason than kept graphs."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import (
    Growth,
    each_step,
    growth,
    kept_lines,
    kept_where_made,
    place_of_line,
    until_when,
)
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules.graph_kept import look as graphs_kept
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.step_work import StaysBehind
from ridgeline.report.plain import function_label
from ridgeline.source.kept_tensors import Kept

MAX_NAMED_LINES = 4
"""Lines named that may keep what stays."""

RULE = Rule(id="memory-leak", family="memory", budget="memory")


def look(case: Case) -> Iterator[Finding]:
    grown = growth(case)
    if grown is None or any(graphs_kept(case)):
        return
    stays = case.traced_memory.stays if case.traced_memory is not None and grown.sure else ()
    lines = _candidates(case, stays)
    line = lines[0] if lines else None
    if not grown.confirmed and (line is None or line.guessed):
        return
    stayed = (stay.place for stay in stays if stay.place is not None)
    yield make_finding(
        RULE,
        claim=_claim(grown, lines, case.step_ms),
        share=0.0,
        memory=grown.filled,
        bound=1.0,
        evidence=[
            each_step(grown, case.step_ms),
            *grown.evidence,
            *_blocks(stays),
            *_source(lines),
        ],
        place=place_of_line(line) or next(stayed, None),
        change=_change(line),
        confidence=_confidence(grown, line),
        doubt=_doubt(grown, lines),
    )


def _candidates(case: Case, stays: tuple[StaysBehind, ...]) -> list[Kept]:
    """Return the lines that may keep it, the likeliest first. If the trace knows which function
    allocates most of what stays, these are lines that keep something made in it; else they are what
    the source alone says."""
    most = stays[0].place if stays else None
    made = kept_where_made(case, most) if most is not None else ()
    found = [one for one in made if not one.graph]
    found = [one for one in found if not one.guessed] or found
    return found or [one for one in kept_lines(case) if not one.graph]


def _claim(grown: Growth, lines: list[Kept], step_ms: float) -> str:
    each = units.bytes_(grown.bytes_per_step)
    until = until_when(grown, step_ms)
    end = f", and {until}" if until else ", without end"
    if _is_unsettled(lines):
        function = function_label(lines[0].function, lines[0].file)
        return f"{function} keeps {each} of every step{end}"
    if lines:
        return f"`{lines[0].container}` keeps {each} of every step{end}"
    return f"every step leaves {each} behind{end}"


def _is_unsettled(lines: list[Kept]) -> bool:
    """Return whether several lines of one function may keep it, and none surely keeps a tensor."""
    return len(lines) > 1 and lines[0].guessed and len({(k.file, k.function) for k in lines}) == 1


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


def _source(lines: list[Kept]) -> list[Evidence]:
    shown = lines[:MAX_NAMED_LINES] if _is_unsettled(lines) else lines[:1]
    number = "line {}: ".format if len(shown) > 1 else "".format
    return [
        read("source", f"{number(line.line)}{line.text}: nothing empties `{line.container}`")
        for line in shown
    ]


def _change(line: Kept | None) -> str:
    if line is None:
        return "# keep a bounded number: deque(maxlen=…), or clear() at the end of an epoch"
    if line.how == "key":
        return f"{line.container}.pop(oldest)  # drop what is no longer read"
    return f"{line.container} = deque(maxlen=…)  # as many as are ever read"
