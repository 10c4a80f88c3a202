"""Everything that the page of a run shows: its summary, and beside it what was recorded, thinned to
what a browser can hold."""

from msgspec import Struct

from ridgeline.records.run import Capture, RunFile, Step, Telemetry
from ridgeline.records.run_summary import RunSummary
from ridgeline.records.timeline import SourceLines, Timeline


class Histogram(Struct, frozen=True, kw_only=True):
    """How many values lie between each two edges."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    beyond: int = 0
    """How many values lie above the last edge."""


class RunPage(Struct, frozen=True, kw_only=True):
    summary: RunSummary
    run: RunFile
    capture: Capture | None = None
    """Of the rank that the summary shows."""
    steps: tuple[Step, ...] = ()
    """Of that rank, by index; thinned where there are more than a page holds."""
    steps_left_out: int = 0
    step_ms: Histogram | None = None
    """Of the steps that the figures count; None if there are too few."""
    telemetry: tuple[Telemetry, ...] = ()
    telemetry_left_out: int = 0
    timeline: Timeline | None = None
    """The traced steps of all ranks; None without a trace."""
    source: tuple[SourceLines, ...] = ()
    """The lines that findings and events name, with their neighbours, as far as the files can be
    read. They may have changed since the run."""
    problems: tuple[str, ...] = ()
    """One sentence for each part of the run that could not be read."""
