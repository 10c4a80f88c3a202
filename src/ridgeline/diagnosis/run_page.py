"""Reads what the page of a run shows from its directory."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from ridgeline.diagnosis.recorded_run import Attempts, read_run
from ridgeline.records.facts import Place
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_page import Histogram, RunPage, SourceLines
from ridgeline.records.run_summary import RunSummary

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
MAX_SOURCE_BYTES, MAX_SOURCE_LINES = 4_000_000, 1_500
"""Size of a file that is read for its lines, and lines of source on a page."""


def run_page(directory: RunDirectory, summary: RunSummary) -> RunPage:
    attempts = Attempts()
    read = read_run(directory, attempts)
    steps, samples = thinned(read.steps, MAX_STEPS), thinned(read.telemetry, MAX_SAMPLES)
    places = [Place(one.file, one.line) for one in summary.findings.findings if one.line]
    folder = Path(read.run.environment.folder)
    source = attempts.part("the source", lambda: tuple(source_lines(folder, places)))
    return RunPage(
        summary=summary,
        run=read.run,
        capture=read.capture,
        steps=steps,
        steps_left_out=len(read.steps) - len(steps),
        step_ms=histogram([step.dur_ns / 1e6 for step in read.steps if step.window == "light"]),
        telemetry=samples,
        telemetry_left_out=len(read.telemetry) - len(samples),
        source=source or (),
        problems=tuple(attempts.failures),
    )


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


def source_lines(folder: Path, places: Iterable[Place]) -> Iterator[SourceLines]:
    """Yield the lines around these places, for each file from top to bottom. A file that cannot be
    read is left out."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for place in places:
        if place.line is not None:
            wanted[place.file].add(place.line)
    left = MAX_SOURCE_LINES
    for file, numbers in wanted.items():
        path = folder / file
        try:
            if path.stat().st_size > MAX_SOURCE_BYTES:
                continue
            text = path.read_text("utf-8", errors="replace").splitlines()
        except OSError:
            continue
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
            yield SourceLines(file=file, first=first, lines=tuple(text[first - 1 : last]))


def _stretches(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of numbers that follow each other without a gap."""
    ordered = sorted(numbers)
    first = 0
    for place, number in enumerate(ordered):
        if place + 1 == len(ordered) or ordered[place + 1] != number + 1:
            yield ordered[first], number
            first = place + 1
