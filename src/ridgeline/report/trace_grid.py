"""One section of a trace's report, before it has a format: words and figures in columns."""

from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.records.trust import Trust
from ridgeline.report.plain import printable

Sort = Literal["number", "words", "name", "place"]
Rows = tuple[tuple[str, ...], ...]

LEAST_SHARE = 0.001
"""Below it the digits of a percentage say nothing more, and a row is no line of the short view."""
SHORT_FOLDED = 15
"""Rows of a folded table, where a format folds what the terminal's short view leaves out."""


class Column(Struct, frozen=True):
    name: str
    sort: Sort = "number"
    """Names and places may be shortened where there is little room; words and numbers never are."""
    spare: int = 0
    """1: left out first where the terminal is narrow; -1: last of all, the table's point; 2: for
    the full view only."""


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
    shares: tuple[float, ...] = ()
    """Of each row in the table's total, where a row can be too small to be worth a line."""
    behind: int = 0
    """Rows of the study that were not made into words, as nobody will see them."""
    left_out: int = 0
    """Rows that were not even handed over."""
    rest: str = ""
    """Where those can be had."""
    brief: str = ""
    """One line that stands for the table in the short view."""
    doubt: str = ""
    """Why the figures cannot be fully believed."""
    empty: str = ""
    """What to say where there is nothing to show."""

    @property
    def told(self) -> bool:
        return bool(self.rows or self.says)

    def shown(self, full: bool, most: int | None = None) -> "tuple[Rows, str]":
        """The rows of a view, and a sentence on the others; `most` is what the person asked for."""
        rows = self.rows
        if most is not None:
            rows = rows[:most]
        elif not full:
            rows = self._worth_a_line()[: self.short or SHORT_FOLDED]
        hidden = len(self.rows) + self.behind - len(rows)
        if not hidden + self.left_out:
            return rows, ""
        more = f"and {hidden + self.left_out:,} more"
        if hidden and not full and most is None:
            return rows, f"{more}, {f'{hidden:,} of them ' if self.left_out else ''}with --full"
        return rows, f"{more}, {self.rest}" if self.rest and not hidden else more

    def _worth_a_line(self) -> "Rows":
        if not self.shares:
            return self.rows
        large = [r for r, s in zip(self.rows, self.shares, strict=True) if s >= LEAST_SHARE]
        return tuple(large) or self.rows


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
