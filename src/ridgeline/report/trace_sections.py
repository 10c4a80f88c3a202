"""All sections of a trace's report, in the order they are read: why it idled before what ran."""

from collections.abc import Callable

import msgspec

from ridgeline.records.trace import TraceStudy
from ridgeline.report import trace_rank_sections as rank
from ridgeline.report import trace_time_sections as time
from ridgeline.report import trace_work_sections as work
from ridgeline.report.plain import printable
from ridgeline.report.trace_cut import first_rows, rows_of
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


FEW = 200
"""Rows of a table that a short view looks at; 50,000 rows of words take two seconds."""


def sections(study: TraceStudy, most: int | None = None) -> tuple[Section, ...]:
    """Each with its doubt: its own, or that of a check that names it. `most`: rows looked at."""
    if most is None:
        return tuple(_doubted(make(study), study) for make in ORDER)
    # regions stay whole: their line counts them itself
    few = msgspec.structs.replace(first_rows(study, most), regions=study.regions)
    return tuple(_counted(_doubted(make(few), study), study, most) for make in ORDER)


def _counted(section: Section, study: TraceStudy, most: int) -> Section:
    """The rows that were not looked at; a section that knows of more took them for left out."""
    rows = rows_of(study).get(section.id, ())
    behind = len(rows[most:])
    left_out = max(section.left_out - behind, 0)
    return msgspec.structs.replace(section, behind=behind, left_out=left_out)


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
