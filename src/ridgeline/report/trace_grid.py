"""One section of a trace's report, before it has a format: words and figures in columns."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.trace import Trust
from ridgeline.report import units
from ridgeline.report.plain import printable

Sort = Literal["number", "words", "name", "place"]


LEAST_SHARE = 0.001
"""Below it the digits of a percentage say nothing more."""


class Column(Struct, frozen=True):
    name: str
    sort: Sort = "number"
    """Names and places may be shortened where there is little room; words and numbers never are."""
    spare: int = 0
    """1: left out first where the terminal is narrow; 2: for the full view only."""


class Section(Struct, frozen=True, kw_only=True):
    """A title, sentences, a table. Every cell can be printed as it is."""

    id: str
    title: str
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    says: tuple[str, ...] = ()
    """Sentences above the table."""
    notes: tuple[str, ...] = ()
    """Sentences below it."""
    short: int = 5
    """Rows in the short view; 0: the section is for the full one only."""
    left_out: int = 0
    """Rows that were not even handed over."""
    brief: str = ""
    """One line that stands for the table in the short view."""
    doubt: str = ""
    """Why the figures cannot be fully believed."""
    empty: str = ""
    """What to say where there is nothing to show."""

    @property
    def told(self) -> bool:
        return bool(self.rows or self.says)


def number(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)


def time(ns: float | None) -> str:
    """1.73 s, 12 µs; a dash where it is not known."""
    return "—" if ns is None else units.seconds(ns / 1e9)


def share(part: float | None) -> str:
    if part is not None and 0 < part < LEAST_SHARE:
        return "< 0.1 %"
    return "—" if part is None else units.percent(part)


def doubt(trust: Trust) -> str:
    if trust.confidence == "good":
        return ""
    return printable(f"{trust.confidence}: {trust.why}" if trust.why else trust.confidence)
