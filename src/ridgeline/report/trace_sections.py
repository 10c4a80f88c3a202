"""All sections of a trace's report, in the order they are read: why it idled before what ran."""

from collections.abc import Callable

import msgspec

from ridgeline.records.trace import TraceStudy
from ridgeline.report import trace_rank_sections as rank
from ridgeline.report import trace_time_sections as time
from ridgeline.report import trace_work_sections as work
from ridgeline.report.trace_grid import Section

ORDER: tuple[Callable[[TraceStudy], Section], ...] = (
    time.causes,
    time.gaps,
    time.lines,
    time.histogram,
    rank.ranks,
    rank.collectives,
    time.devices,
    time.streams,
    time.steps,
    work.kernels,
    work.ops,
    work.shapes,
    work.modules,
    work.roofline,
    work.regions,
    time.critical_path,
    work.categories,
    time.phases,
    time.launch,
    time.overlap,
    work.memory,
)


def sections(study: TraceStudy) -> tuple[Section, ...]:
    """Each with its doubt: its own, or that of a check that names it."""
    return tuple(_doubted(make(study), study) for make in ORDER)


def _doubted(section: Section, study: TraceStudy) -> Section:
    if section.doubt or not section.told:
        return section
    loud = [c for c in study.validation if section.id in c.affects and c.severity != "note"]
    if not loud:
        return section
    worst = "unreliable" if any(c.severity == "error" for c in loud) else "doubtful"
    return msgspec.structs.replace(section, doubt=f"{worst}: see the warnings above")
