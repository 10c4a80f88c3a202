"""The edits of one file as they are being planned: nothing is changed until all are."""

from dataclasses import dataclass, field

import libcst as cst

from ridgeline.source.editing.splice import Run, Splice
from ridgeline.source.editing.tree import Statement, Tree


@dataclass(frozen=True, slots=True)
class Note:
    """A comment that a line of a statement is to get."""

    statement: Statement
    line: int
    why: str
    grown: int
    """By how many columns the edit makes that line longer."""


@dataclass(slots=True)
class Asked:
    """The keywords one call is to get."""

    call: cst.Call
    statement: Statement
    keywords: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, value, why."""


@dataclass(slots=True)
class Draft:
    tree: Tree
    encoding: str
    added: frozenset[int]
    """Lines that edits like these put there before."""
    splices: list[Splice] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    rewritten: list[tuple[int, int]] = field(default_factory=list)
    """First and last lines that are replaced whole."""
    beside: list[int] = field(default_factory=list)
    """Lines of statements that others are put beside."""
    notes: list[Note] = field(default_factory=list)
    calls: dict[int, Asked] = field(default_factory=dict)
    """By where they end."""
    imported: dict[str, int] = field(default_factory=dict)
    """Names that imports of this draft bind, and the line they are put before."""
