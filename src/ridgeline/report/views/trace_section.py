"""The form of a section of a trace's report: a doubt, sentences, a picture, a table, notes."""

from collections.abc import Sequence

from ridgeline.records.trace import TraceStudy
from ridgeline.records.trust import Trust
from ridgeline.report.document import Block, Chart, Column, Item, Paragraph, Section, Table, item

NO_DEVICE = "There is no device work in this trace."
MAX_FOLDED_ROWS = 15
"""Rows of a table that a terminal shows only in the full view, in formats that fold it."""
EXPLAINED_BY_MISSING = ("no-shapes", "no-stacks", "no-memory")
"""Codes of doubts that `TraceStudy.missing` explains already, with the option of the profiler to
set."""
_ALSO_CALLED = {"gaps": ("idle", "idle causes"), "idle": ("idle causes",), "device": ("idle",)}
"""Other names under which checks make a section doubtful."""

GOOD = Trust()
SectionOrGap = Section | Item
"""A section, or a sentence that says why there is nothing to show."""


def trace_section(
    study: TraceStudy,
    title: str,
    *,
    name: str = "",
    sentences: Sequence[str] = (),
    charts: Sequence[Chart] = (),
    table: Table | None = None,
    notes: Sequence[str] = (),
    trust: Trust = GOOD,
    empty: str = "",
    full: bool = False,
    line: str = "",
) -> SectionOrGap:
    """Return a section. `name` is what checks call it. `full`: a terminal shows it in the full view
    only, with `line` in its place where there is one; a page folds it."""
    has_rows = table is not None and bool(table.rows)
    if not has_rows and not sentences:
        return _nothing(study, title, trust, empty)
    doubt = _doubt(study, name, trust)
    blocks: list[Block] = [Paragraph(doubt, "doubt")] if doubt else []
    blocks += [Paragraph(text) for text in sentences]
    blocks += charts
    blocks += [table] if table is not None and has_rows else []
    blocks += [Paragraph(text, "quiet") for text in notes]
    return Section(
        title=title,
        id=name.replace(" ", "_"),
        blocks=tuple(blocks),
        detail="full" if full and has_rows and not line else "brief",
        folded=full and has_rows,
        line=line,
        beside=not has_rows,
    )


def numbers(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)


def doubt_text(trust: Trust) -> str:
    if trust.confidence == "good":
        return ""
    return f"{trust.confidence}: {trust.why}" if trust.why else trust.confidence


def _nothing(study: TraceStudy, title: str, trust: Trust, empty: str) -> SectionOrGap:
    if trust.confidence == "good":
        return item(title, empty)
    # The headline says that there is no device work, and the last lines what was not recorded.
    elsewhere = not study.devices or any(code in EXPLAINED_BY_MISSING for code in trust.codes)
    return Section(
        title=title,
        blocks=(Paragraph(doubt_text(trust), "doubt"),),
        detail="full" if elsewhere else "brief",
        beside=True,
    )


def _doubt(study: TraceStudy, name: str, trust: Trust) -> str:
    """Return why a section cannot be fully trusted. A reason that a warning of the report gives is
    not repeated."""
    names = {name, *_ALSO_CALLED.get(name, ())}
    loud = [c for c in study.validation if names & {*c.affects} and c.severity != "note"]
    is_explained = any(check.id in trust.codes for check in loud)
    if not loud or (trust.confidence != "good" and not is_explained):
        return doubt_text(trust)
    worst = "unreliable" if any(c.severity == "error" for c in loud) else "doubtful"
    return f"{worst}: see the warnings above"
