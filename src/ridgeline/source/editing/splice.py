"""Pieces of text to put into a source, and the putting in. A piece marks with `DEEPER` the end of
each indentation of its own, where a `with` put around it adds one level."""

from collections.abc import Sequence
from enum import IntEnum

from msgspec import Struct

from ridgeline.source.editing.cannot import Cannot

DEEPER = "\x00"  # no valid source holds it


class Rank(IntEnum):
    """Which comes first at one place."""

    AFTER = 0
    START = 1
    IMPORT = 2
    FLAGS = 3
    FUNCTION = 4
    BEFORE = 5
    HEADER = 6
    NOTE = 7
    LEVEL = 8
    TEXT = 9
    TRAILING = 10
    LINES = 11


class Splice(Struct, frozen=True, kw_only=True):
    start: int
    end: int
    text: str
    rank: Rank
    anchor: int = -1
    """Where the statement begins that it was put beside; lines after the last statement of a body
    may stand where those after the body do."""
    level: int = 0
    """How deep that statement's block is."""


class Run(Struct, frozen=True, kw_only=True):
    """Statements put into a `with`: from the start of their first line to that after their last."""

    start: int
    end: int
    level: int
    unit: str
    """One level of indentation."""
    header: str
    """Its lines, each with `DEEPER` after its indentation."""
    line_ends: tuple[int, ...]
    """The ends of the indentation of those lines that get one more level."""


def composed(text: str, splices: Sequence[Splice], runs: Sequence[Run]) -> str:
    pieces: list[tuple[int, int, int, str]] = []
    for splice in sorted(splices, key=lambda splice: -splice.level):  # of a body, before its owner
        extra = "".join(run.unit for run in runs if _within(splice, run))
        pieces.append((splice.start, splice.end, splice.rank, splice.text.replace(DEEPER, extra)))
    for outer in sorted(runs, key=lambda run: (run.start, -run.end)):  # stable: first is outer
        extra = "".join(run.unit for run in runs if _around(run, outer, runs))
        header = outer.header.replace(DEEPER, extra)
        pieces.append((outer.start, outer.start, Rank.HEADER, header))
    pieces += _deeper(runs, [(piece[0], piece[1]) for piece in pieces if piece[1] > piece[0]])
    pieces.sort(key=lambda piece: (piece[0], piece[2]))
    out: list[str] = []
    at = 0
    for start, end, _, piece in pieces:
        if start < at:
            raise Cannot("it overlaps another edit")
        out += (text[at:start], piece)
        at = end
    return "".join((*out, text[at:]))


def _deeper(
    runs: Sequence[Run], replaced: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int, str]]:
    """One more level for the lines of the runs, save those that are replaced."""
    return [
        (end, end, Rank.LEVEL, run.unit)
        for run in runs
        for end in run.line_ends
        if not any(first < end < last for first, last in replaced)
    ]


def _within(splice: Splice, run: Run) -> bool:
    """An edit at the run's first or last edge stays outside, unless it belongs to a statement in
    it."""
    if splice.level > run.level and run.start <= splice.anchor < run.end:
        return True
    if splice.rank >= Rank.NOTE:
        return run.start <= splice.start < run.end
    return run.start < splice.start < run.end


def _around(run: Run, inner: Run, runs: Sequence[Run]) -> bool:
    if run is inner:
        return False
    if (run.start, run.end) == (inner.start, inner.end):
        return _place(run, runs) < _place(inner, runs)
    return run.start <= inner.start and inner.end <= run.end


def _place(run: Run, runs: Sequence[Run]) -> int:
    return next(at for at, other in enumerate(runs) if other is run)
