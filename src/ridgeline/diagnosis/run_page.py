"""Reads what the page of a run shows from its directory, and that of traces from the traces."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.conclusion import concluded_case
from ridgeline.diagnosis.operator_roofline import module_tree, operator_roofline
from ridgeline.diagnosis.python_view import python_stacks, settled
from ridgeline.diagnosis.recorded_run import Attempts, FileNames, RunRead, read_run
from ridgeline.diagnosis.step_times import SteadySteps, duration, steady_steps
from ridgeline.diagnosis.stored_case import stored_case
from ridgeline.records.facts import Place
from ridgeline.records.finding import Findings
from ridgeline.records.memory import MemoryStudy
from ridgeline.records.run import Step
from ridgeline.records.run_directory import RunDirectory, read_whole
from ridgeline.records.run_page import Histogram, PythonStacks, RunPage
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.timeline import SourceLines, Timeline, TracePage
from ridgeline.records.trace import Roofline, TraceStudy
from ridgeline.trace.study import open_trace
from ridgeline.trace.timeline import timeline
from ridgeline.trace.trace import Trace

T = TypeVar("T")

MAX_STEPS, MAX_SAMPLES = 2_000, 1_000
"""Steps and samples of telemetry on a page. More would be drawn within a pixel of each other."""
BINS, MIN_BINNED = 32, 8
"""Bars of a histogram, and values below which one says nothing."""
MAX_BINNED_FACTOR = 4.0
"""Values more than this many times the median are counted apart: one of them would press all others
into one bar."""
NEIGHBOURS = 12
"""Lines shown before and after one that is named."""
MAX_SOURCE_BYTES, MAX_SOURCE_LINES, MAX_LINE_LENGTH = 4_000_000, 1_500, 400
"""Size of a file that is read for its lines, lines of source on a page, and letters of a line."""
MAX_SAMPLED_LINES = 40
"""Lines of Python that were sampled most whose source is shown."""
MAX_TIMELINE_RANKS = 8
"""Ranks whose traces are read for the timeline. More do not fit beside each other."""
MAX_SOURCE_PLACES = 60
"""Functions in which events began whose source is shown, those with the most time first."""


def run_page(directory: RunDirectory, summary: RunSummary) -> RunPage:
    attempts = Attempts()
    read = read_run(directory, attempts)
    steps, samples = thinned(read.steps, MAX_STEPS), thinned(read.telemetry, MAX_SAMPLES)
    shown = attempts.part("the timeline", lambda: run_timeline(read, attempts))
    summary = _with_short_names(summary, FileNames(read.run, read.capture))
    sampled = summary.python.lines[:MAX_SAMPLED_LINES] if summary.python is not None else ()
    places = [Place(one.file, one.line) for one in sampled]
    places = [*named_places(summary.findings, shown), *places]
    folder = Path(read.run.environment.folder)
    source = attempts.part("the source", lambda: tuple(source_lines([folder], places)))
    case = attempts.part("the case", lambda: _case(directory)) or Case()
    roofline = attempts.part("the roofline", lambda: operator_roofline(case.sites, case.device))
    modules = attempts.part("the modules", lambda: module_tree(case.sites))
    stacks = attempts.part("the Python samples", lambda: _stacks(directory, read))
    steady = attempts.part("the steps", lambda: steady_steps(read.steps)) or SteadySteps()
    memory = attempts.part("the memory by line", lambda: _memory(directory))
    return RunPage(
        summary=summary,
        study=case.study,
        ranks=case.across,
        roofline=roofline or Roofline(),
        modules=modules or (),
        stacks=stacks or PythonStacks(),
        run=read.run,
        memory=memory or summary.memory_study,
        capture=read.capture,
        steps=steps,
        steps_left_out=len(read.steps) - len(steps),
        step_ms=histogram([duration(step, steady.device_clock) / 1e6 for step in steady.steps]),
        first_steady=steady.steps[0].index if steady.steps else None,
        traced_factor=_traced_factor(read.steps, steady),
        telemetry=samples,
        telemetry_left_out=len(read.telemetry) - len(samples),
        timeline=shown,
        source=source or (),
        problems=tuple(attempts.failures),
    )


def _with_short_names(summary: RunSummary, names: FileNames) -> RunSummary:
    """Name the files of sampled lines as findings do, so that both stand beside one line."""
    if summary.python is None:
        return summary
    lines = tuple(replace(line, file=names.shown(line.file)) for line in summary.python.lines)
    return replace(summary, python=replace(summary.python, lines=lines))


def run_timeline(read: RunRead, attempts: Attempts) -> Timeline | None:
    """Return the timeline of the ranks whose traces can be read."""
    names = FileNames(read.run, read.capture)
    opened = [
        attempts.part(path.name, lambda path=path: open_trace(path, cache=False).trace)  # type: ignore[misc]
        for path in read.trace_files[:MAX_TIMELINE_RANKS]
    ]
    traces = [trace for trace in opened if trace is not None]
    traced = [step.index for step in read.steps if step.window == "traced"]
    return timeline(traces, step_numbers=traced, shown=names.shown) if traces else None


def trace_page(
    traces: Sequence[Trace], study: TraceStudy, findings: Findings, steps: str | None
) -> TracePage:
    """Return what the page of traces shows beside the study."""
    shown = timeline(traces, study, steps=steps)
    folders = [Path.cwd(), Path(traces[0].origin.path).resolve().parent]
    source = source_lines(folders, named_places(findings, shown))
    return TracePage(timeline=shown, source=tuple(source))


def named_places(findings: Findings, shown: Timeline | None) -> list[Place]:
    """Return the places of the findings, and those of the timeline, the longest first."""
    places = [Place(one.file, one.line) for one in findings.findings if one.line]
    if shown is None:
        return places
    total_ns: dict[Place, int] = defaultdict(int)
    for lane in shown.lanes:
        for work, length in zip(lane.work, lane.length_ns, strict=True):
            place = shown.works[work].place
            if place is not None:
                total_ns[Place(place.file, place.line)] += length
    longest = sorted(total_ns, key=lambda place: -total_ns[place])
    return places + longest[:MAX_SOURCE_PLACES]


def _traced_factor(steps: Sequence[Step], steady: SteadySteps) -> float | None:
    """Return how many times as long a traced step takes as a steady one, on the host."""
    traced = [step.dur_ns for step in steps if step.window == "traced" and step.dur_ns > 0]
    if not traced or not steady.steps:
        return None
    return median(traced) / median(step.dur_ns for step in steady.steps)


def _case(directory: RunDirectory) -> Case | None:
    """Return the case that the run was concluded from, as it was stored, or else made again."""
    stored = stored_case(directory)
    return stored[1] if stored is not None else concluded_case(directory)[1]


def _memory(directory: RunDirectory) -> MemoryStudy | None:
    try:
        return read_whole(directory.memory_study_file, MemoryStudy)
    except FileNotFoundError:
        return None


def _stacks(directory: RunDirectory, read: RunRead) -> PythonStacks:
    """Return the sampled stacks of the settled program, if they were asked for."""
    if not read.run.settings.python:
        return PythonStacks()
    since_ns = min((step.start_ns for step in read.steps if step.window == "light"), default=0)
    stacks = python_stacks(settled(directory.sampled(), since_ns))
    names = FileNames(read.run, read.capture)
    nodes = (replace(n, file=names.shown(n.file)) if n.is_own else n for n in stacks.nodes)
    return replace(stacks, nodes=tuple(nodes))


def thinned(values: Sequence[T], most: int) -> tuple[T, ...]:
    """Return at most so many of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return tuple(values)
    last = len(values) - 1
    return tuple(values[round(i * last / (most - 1))] for i in range(most))


def histogram(values: Sequence[float]) -> Histogram | None:
    """Return how often values of each size occur; None if there are too few."""
    if len(values) < MIN_BINNED:
        return None
    limit = MAX_BINNED_FACTOR * median(values)
    kept = [value for value in values if value <= limit]
    counts, edges = np.histogram(kept, bins=min(BINS, len(kept)))
    return Histogram(
        edges=tuple(edges.tolist()), counts=tuple(counts.tolist()), beyond=len(values) - len(kept)
    )


def source_lines(folders: Sequence[Path], places: Iterable[Place]) -> Iterator[SourceLines]:
    """Yield the lines around these places, for each file from top to bottom. A file that cannot be
    read is left out, and one that is no Python: a trace may name any file of this machine."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for place in places:
        if place.line is not None:
            wanted[place.file].add(place.line)
    left = MAX_SOURCE_LINES
    for file, numbers in wanted.items():
        text = _lines(folders, file)
        near = {
            number
            for at in numbers
            for number in range(max(at - NEIGHBOURS, 1), min(at + NEIGHBOURS, len(text)) + 1)
        }
        for first, last in _stretches(near):
            if left <= 0:
                return
            last = min(last, first + left - 1)
            left -= last - first + 1
            yield SourceLines(
                file=file,
                first=first,
                lines=tuple(line[:MAX_LINE_LENGTH] for line in text[first - 1 : last]),
            )


def _lines(folders: Sequence[Path], file: str) -> list[str]:
    for folder in folders:
        path = folder / file
        try:
            if path.suffix == ".py" and path.is_file() and path.stat().st_size <= MAX_SOURCE_BYTES:
                return path.read_text("utf-8", errors="replace").splitlines()
        except (OSError, ValueError):
            continue
    return []


def _stretches(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of numbers that follow each other without a gap."""
    ordered = sorted(numbers)
    first = 0
    for place, number in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != number + 1:
            yield ordered[first], number
            first = place + 1
