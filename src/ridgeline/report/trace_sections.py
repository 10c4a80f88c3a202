"""All sections of a trace's report, in the order they are read: why it idled before what ran."""

from collections.abc import Callable

import msgspec

from ridgeline.records.trace import TraceStudy
from ridgeline.report import trace_rank_sections as rank
from ridgeline.report import trace_time_sections as time
from ridgeline.report import trace_work_sections as work
from ridgeline.report.plain import printable
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


_ALSO = {"idle": ("idle causes",), "gaps": ("idle", "idle causes"), "device": ("idle",)}
"""Sections that a check names otherwise."""


def _doubted(section: Section, study: TraceStudy) -> Section:
    """A doubt that a warning explains is not explained twice."""
    if not section.told:
        return section
    names = {section.id, section.id.replace("_", " "), *_ALSO.get(section.id, ())}
    loud = [c for c in study.validation if names & {*c.affects} and c.severity != "note"]
    # of several ranks a claim says whose it is, the doubt does not
    told = any(printable(c.claim.split(": ", 1)[-1]) in section.doubt for c in loud)
    if not loud or (section.doubt and not told):
        return section
    worst = "unreliable" if any(c.severity == "error" for c in loud) else "doubtful"
    return msgspec.structs.replace(section, doubt=f"{worst}: see the warnings above")
