"""The timeline of a run or of traces, and the source that its events and the findings name."""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from ridgeline import units
from ridgeline.records.finding import Finding
from ridgeline.records.run import PythonView
from ridgeline.records.timeline import SourceLines, Timeline, TimelineLane, Work
from ridgeline.report.document import Block, Paragraph, Section
from ridgeline.report.drawings import Fact, Kind, Lane, LineMark, Source, SourceFile
from ridgeline.report.drawings import Timeline as TimelineDrawing
from ridgeline.report.numbers import share, time
from ridgeline.report.plain import function_label, kernel_name, shorten
from ridgeline.report.views.findings import claim_text, is_worth_a_line

MIN_IDLE_SHARE = 0.05
"""Below this share of the window the title does not say why the device is idle."""
MIN_LINE_SHARE = 0.005
"""A line of Python with a smaller share of the time is not marked."""
MAX_NAME_LENGTH = 100
_CAUSES: dict[str, str] = {
    "input": "waits for input",
    "synchronisation": "waits because the host waited for the device",
    "transfer": "waits for copies",
    "launch-bound": "waits for the host to launch work",
    "allocator": "waits for memory to be allocated",
    "compile": "waits for the compiler",
    "collective wait": "waits for other ranks",
    "garbage collection": "waits for Python's garbage collection",
    "other host": "waits for Python code of the program",
    "between kernels": "is pauses between kernels",
}
_FACTS: tuple[tuple[str, str], ...] = (
    ("operator", "operator"), ("module", "module"), ("shape", "shape"), ("stack", "called from"),
    ("host", "the host was in"), ("before", "after"), ("after", "before"),
)  # fmt: skip
"""Fields of `Work`, and how the page calls them: an idle gap comes after what was `before` it."""


def timeline_section(
    timeline: Timeline | None,
    source: Sequence[SourceLines] = (),
    findings: Sequence[Finding] = (),
    python: PythonView | None = None,
) -> Iterator[Section]:
    """Yield the timeline and the source, as far as they are there."""
    if timeline is not None and timeline.events:
        blocks: list[Block] = [drawing(timeline)]
        if timeline.clocks_differ:
            text = "The clocks of these ranks have nothing in common: each begins at its own start."
            blocks.insert(0, Paragraph(text, "doubt"))
        yield Section(title="Timeline", blocks=tuple(blocks), detail="page")
    if source:
        yield Section(
            title="Source", blocks=(source_drawing(source, findings, python),), detail="page"
        )


def drawing(timeline: Timeline) -> TimelineDrawing:
    texts, kinds = _Numbers(), _Numbers()
    places = _Numbers()
    works = timeline.works
    functions: dict[str, str] = {}
    for work in works:
        if work.place is not None:
            label = function_label(work.place.function, work.place.file)
            functions.setdefault(_place(work), label)
    names = tuple(texts.of(_name(work)) for work in works)
    kind_of = tuple(kinds.of(work.kind) for work in works)
    place_of = tuple(places.of(_place(work)) for work in works)
    facts = []
    for field, label in _FACTS:
        values = [_fact(work, field) for work in works]
        if any(values):
            searched = field not in ("before", "after")  # they are events of their own
            facts.append(Fact(label, tuple(texts.of(value) for value in values), searched))
    return TimelineDrawing(
        title=_title(timeline),
        length_ns=timeline.length_ns,
        lanes=tuple(_lane(lane) for lane in timeline.lanes),
        texts=tuple(texts),
        all_kinds=tuple(Kind(kind.replace(" ", "-"), kind) for kind in kinds),
        all_places=tuple(places),
        functions=tuple(functions[place] for place in places),
        facts=tuple(facts),
        caption=" ".join(_caption(timeline)),
        names=names,
        kinds=kind_of,
        places=place_of,
    )


class _Numbers(dict[str, int]):
    """Texts by the order in which they were first asked for; -1 stands for an empty one."""

    def of(self, text: str) -> int:
        return self.setdefault(text, len(self)) if text else -1


def _name(work: Work) -> str:
    return _short(work.name)


@lru_cache(maxsize=10_000)
def _short(name: str) -> str:
    return shorten(kernel_name(name), MAX_NAME_LENGTH)


def _place(work: Work) -> str:
    return f"{work.place.file}:{work.place.line}" if work.place is not None else ""


def _fact(work: Work, field: str) -> str:
    value = getattr(work, field)
    if field == "stack":
        return " ← ".join(value)
    return value if field == "shape" else _short(value)


def _lane(lane: TimelineLane) -> Lane:
    before = 0
    starts = []
    for start in lane.start_ns:
        starts.append(start - before)
        before = start
    name, about = _lane_name(lane)
    if lane.left_out:
        about = "; ".join(filter(None, (about, f"{lane.left_out:,} events are left out")))
    return Lane(
        group=lane.rank, name=name, about=about, kind=lane.kind, starts=tuple(starts),
        lengths=lane.length_ns, depths=lane.depth, works=lane.work, launched=lane.launched_ns,
    )  # fmt: skip


def _lane_name(lane: TimelineLane) -> tuple[str, str]:
    if lane.kind == "steps":
        return "steps", "steps, as the host marked them"
    if lane.kind == "phases":
        return "phases", "what the host was doing"
    if lane.kind == "idle":
        return f"idle {lane.device}", f"why device {lane.device} had nothing to do"
    if lane.kind == "device":
        return f"GPU {lane.device} · stream {lane.stream}", lane.device_name
    names = {"main": "main thread", "backward": "backward thread"}
    return names.get(lane.role, f"thread {lane.thread}"), f"thread {lane.thread} of the host"


def _title(timeline: Timeline) -> str:
    idle, cause = timeline.idle_share, timeline.main_cause
    if idle is not None:
        devices = {(lane.rank, lane.device) for lane in timeline.lanes if lane.kind == "device"}
        what = "the device is" if len(devices) == 1 else "the devices are"
        title = f"{what} idle {share(idle)} of the window"
        if cause in _CAUSES and idle >= MIN_IDLE_SHARE:
            most = "most of it" if timeline.main_cause_share >= 0.5 else "the largest part"
            title += f"; {most} {_CAUSES[cause]}"
        return title
    if timeline.main_phase:
        return f"{timeline.main_phase} takes {share(timeline.main_phase_share)} of the host's time"
    return "what ran, and when"


def _caption(timeline: Timeline) -> Iterator[str]:
    if timeline.left_out:
        yield (
            f"{timeline.events:,} events are shown. {timeline.left_out:,} are left out: in each "
            f"lane the shortest, none longer than {time(timeline.longest_left_out_ns)}."
        )
        if timeline.whole_until_ns:
            first, last = timeline.whole_from_ns, timeline.whole_until_ns
            yield f"Nothing is left out from {time(first)} to {time(last)}."
    if timeline.lanes_left_out:
        yield f"{units.plural(timeline.lanes_left_out, 'lane')} with less work are left out."
    if timeline.library_functions:
        yield "Of Python functions, the program's own are shown, what they call, and modules."


def source_drawing(
    source: Sequence[SourceLines], findings: Sequence[Finding], python: PythonView | None = None
) -> Source:
    marks = [*_finding_marks(findings), *_line_marks(python)]
    shown = {(part.file, part.first + i) for part in source for i in range(len(part.lines))}
    marks = [mark for mark in marks if (mark.file, mark.line) in shown]
    named = {(mark.file, mark.line) for mark in marks if mark.kind == "finding"}
    title = "the lines that events and findings name"
    if named:
        are = "line is" if len(named) == 1 else "lines are"
        title = f"{len(named)} {are} named by findings"
    return Source(
        title=title,
        parts=tuple(
            SourceFile(file=part.file, first=part.first, lines=part.lines) for part in source
        ),
        marks=tuple(marks),
        caption="As the files are now; they may have changed since.",
    )


def _finding_marks(findings: Sequence[Finding]) -> Iterator[LineMark]:
    for finding in findings:
        if finding.line is None:
            continue
        low = "" if is_worth_a_line(finding) else "small or unmeasured: "
        text = f"{low}{claim_text(finding)}"
        yield LineMark(file=finding.file, line=finding.line, text=text, kind="finding")


def _line_marks(python: PythonView | None) -> Iterable[LineMark]:
    for line in python.lines if python is not None else ():
        if line.total_share >= MIN_LINE_SHARE:
            who = " of a worker" if line.process == "worker" else ""
            text = f"{share(line.total_share)} of the time{who}"
            yield LineMark(
                file=line.file, line=line.line, text=text, kind="time", share=line.total_share
            )
