"""Reads what the page of a run shows from its directory."""

from collections.abc import Sequence
from typing import TypeVar

from ridgeline.diagnosis.recorded_run import Attempts, read_run
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_page import RunPage
from ridgeline.records.run_summary import RunSummary

T = TypeVar("T")

MAX_STEPS, MAX_SAMPLES = 2_000, 1_000
"""Steps and samples of telemetry on a page. More would be drawn within a pixel of each other."""


def run_page(directory: RunDirectory, summary: RunSummary) -> RunPage:
    attempts = Attempts()
    read = read_run(directory, attempts)
    steps, samples = thinned(read.steps, MAX_STEPS), thinned(read.telemetry, MAX_SAMPLES)
    return RunPage(
        summary=summary,
        run=read.run,
        capture=read.capture,
        steps=steps,
        steps_left_out=len(read.steps) - len(steps),
        telemetry=samples,
        telemetry_left_out=len(read.telemetry) - len(samples),
        problems=tuple(attempts.failures),
    )


def thinned(values: Sequence[T], most: int) -> tuple[T, ...]:
    """Return at most so many of the values, evenly spread, the first and the last among them."""
    if len(values) <= most:
        return tuple(values)
    last = len(values) - 1
    return tuple(values[round(i * last / (most - 1))] for i in range(most))
