"""Memory that grows with every step, for another reason than kept graphs."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnose.case import Case
from ridgeline.diagnose.memory_room import Growth, full_in, growth
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._memory_lines import kept_lines
from ridgeline.diagnose.rules.graph_kept import look as graphs_kept
from ridgeline.diagnose.source.kept import Kept
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.trace import Place
from ridgeline.records.trace_memory import StaysBehind

RULE = Rule(
    id="memory-leak",
    family="memory",
    title="Memory grows with every step",
    budget="memory",
    looks_at=(
        "What is allocated at the end of each step, over the run and in the traced steps; the "
        "sizes of blocks of which each step allocates more than it frees; and the source, for a "
        "line that puts a tensor into a container that nothing empties."
    ),
    threshold=(
        "Memory rises in every step, by enough to fill 5 % of what there is within 100,000 steps. "
        "Where only the resident size of the process rises: by a tenth of it within the steps seen."
    ),
    why=(
        "A step should leave memory as it found it. What it leaves behind adds up, slowly enough "
        "to be missed in a short run, until the device or the host is full: after hours, and "
        "without a word about who did it."
    ),
    fix=(
        "Bound what is kept, or keep it elsewhere:\n\n```python\n"
        "recent = deque(maxlen=100)      # instead of a list\n"
        "cache.clear()                   # at the end of an epoch\n"
        "torch.save(features, path)      # what is needed later\n```"
    ),
    wrong_when=(
        "A buffer that is meant to fill and then stops (a replay memory, a cache of the data set "
        "in its first epoch) grows the same way at first. Look at the size it will have."
    ),
)


def look(case: Case) -> Iterator[Finding]:
    grown = growth(case)
    if grown is None or any(True for _ in graphs_kept(case)):
        return
    stays = case.traced_memory.stays if case.traced_memory is not None and grown.sure else ()
    lines = [one for one in kept_lines(case) if not one.graph]
    line = _likeliest(lines, stays)
    if not grown.confirmed and (line is None or line.guessed):
        return
    yield found(
        RULE,
        claim=_claim(grown, line, case.step_ms),
        share=0.0,
        memory=grown.filled,
        bound=1.0,
        evidence=[*grown.evidence, *_blocks(stays), *_source(line)],
        place=_place(line, stays),
        change=_change(line),
        confidence=_confidence(grown, line),
        doubt=_doubt(grown, lines),
    )


def _likeliest(lines: list[Kept], stays: tuple[StaysBehind, ...]) -> Kept | None:
    """In the function that allocates what stays, where the trace knows it; else the first."""
    places = {(one.place.function) for one in stays if one.place is not None}
    return next((one for one in lines if one.function in places), lines[0] if lines else None)


def _claim(grown: Growth, line: Kept | None, step_ms: float) -> str:
    each = units.bytes_(grown.bytes_per_step)
    full = full_in(grown, step_ms)
    end = f", and the {grown.on}'s memory is full after {full}" if full else ", without end"
    if line is not None:
        return f"`{line.container}` keeps {each} of every step{end}"
    return f"every step leaves {each} behind{end}"


def _confidence(grown: Growth, line: Kept | None) -> Confidence:
    if not grown.sure:
        return "low"
    return "high" if line is not None and not line.guessed else "medium"


def _doubt(grown: Growth, lines: list[Kept]) -> str:
    if not grown.sure:
        return "only the process's resident size grows: it may be the host's allocator"
    if not lines or lines[0].guessed:
        return "a buffer that is meant to fill grows the same way at first"
    return f"{len(lines)} lines keep tensors: this is the likeliest" if len(lines) > 1 else ""


def _blocks(stays: tuple[StaysBehind, ...]) -> list[Evidence]:
    if not stays:
        return []
    most = stays[0]
    by = f", allocated by {', '.join(most.ops)}" if most.ops else ""
    text = f"{units.significant(most.blocks)} a step of {units.bytes_(most.block_bytes)}{by}"
    return [Evidence(what="blocks that stay", text=text, value=float(most.block_bytes))]


def _source(line: Kept | None) -> list[Evidence]:
    if line is None:
        return []
    text = f"{line.text}: nothing empties `{line.container}`"
    return [Evidence(what="source", text=text, source="read")]


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
