"""The edits of one file as they are planned: pieces of text and where they go. Nothing is changed
until all edits are planned.

A piece marks with `DEEPER` the end of each indentation of its own, where a `with` put around it
adds one level. Comments that say why stand behind the line that was changed where they fit, else
above its statement.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import libcst as cst
from msgspec import Struct

from ridgeline.records.reason_codes import Obstacle
from ridgeline.source.editing.tree import MARK, Cannot, Statement, Tree

DEEPER = "\x00"  # no valid source holds it


class Rank(IntEnum):
    """The order of pieces at one place."""

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
    """The line of the statement that the piece was put beside. Lines after the last statement of a
    body may stand at the same place as those after the body."""
    level: int = 0
    """The number of blocks around that statement."""


class Run(Struct, frozen=True, kw_only=True):
    """Statements put into a `with`: from the start of their first line to the end of their last."""

    start: int
    end: int
    level: int
    unit: str
    """One level of indentation."""
    header: str
    """The lines of the `with`, each with `DEEPER` after its indentation."""
    line_ends: tuple[int, ...]
    """The ends of the indentation of those lines that get one more level."""


def composed(text: str, splices: Sequence[Splice], runs: Sequence[Run]) -> str:
    pieces: list[tuple[int, int, int, str]] = []
    for splice in sorted(splices, key=lambda splice: -splice.level):  # of a body, before its owner
        extra = "".join(run.unit for run in runs if _is_within_run(splice, run))
        pieces.append((splice.start, splice.end, splice.rank, splice.text.replace(DEEPER, extra)))
    for outer in sorted(runs, key=lambda run: (run.start, -run.end)):  # stable: first is outer
        extra = "".join(run.unit for run in runs if _is_around_run(run, outer, runs))
        header = outer.header.replace(DEEPER, extra)
        pieces.append((outer.start, outer.start, Rank.HEADER, header))
    pieces += _deeper(runs, [(piece[0], piece[1]) for piece in pieces if piece[1] > piece[0]])
    pieces.sort(key=lambda piece: (piece[0], piece[2]))
    out: list[str] = []
    at = 0
    for start, end, _, piece in pieces:
        if start < at:
            raise Cannot(Obstacle.OVERLAPS)
        out += (text[at:start], piece)
        at = end
    return "".join((*out, text[at:]))


def _deeper(
    runs: Sequence[Run], replaced: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int, str]]:
    """Return one more level of indentation for the lines of the runs, save those that are
    replaced."""
    return [
        (end, end, Rank.LEVEL, run.unit)
        for run in runs
        for end in run.line_ends
        if not any(first < end < last for first, last in replaced)
    ]


def _is_within_run(splice: Splice, run: Run) -> bool:
    """Return whether an edit stands in a run. An edit at the run's first or last edge stays
    outside, unless it belongs to a statement in the run."""
    if splice.level > run.level and run.start <= splice.anchor < run.end:
        return True
    if splice.rank >= Rank.NOTE:
        return run.start <= splice.start < run.end
    return run.start < splice.start < run.end


def _is_around_run(run: Run, inner: Run, runs: Sequence[Run]) -> bool:
    if run is inner:
        return False
    if (run.start, run.end) == (inner.start, inner.end):
        return _place(run, runs) < _place(inner, runs)
    return run.start <= inner.start and inner.end <= run.end


def _place(run: Run, runs: Sequence[Run]) -> int:
    return next(at for at, other in enumerate(runs) if other is run)


@dataclass(frozen=True, slots=True)
class Note:
    """A comment that a line of a statement is to get."""

    statement: Statement
    line: int
    why: str
    grown: int
    """The number of columns that the edit makes the line longer by."""


@dataclass(slots=True)
class Asked:
    """The keywords that one call is to get."""

    call: cst.Call
    statement: Statement
    keywords: list[tuple[str, str, str]] = field(default_factory=list)
    """Name, value and reason of each."""


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
    """The calls that get keywords, by where they end."""
    imported: dict[str, int] = field(default_factory=dict)
    """Names that imports of this draft bind, with the line that each import is put before."""


WIDTH = 100
_COOKIE = re.compile(r"coding([:=])")


def comment(why: str, encoding: str) -> str:
    words = " ".join(why.split()) or "used below"
    # "decoding: 4 workers" on a file's first two lines would be read as its encoding
    words = _COOKIE.sub(r"coding \1", words)
    return f"{MARK} {words}".encode(encoding.removesuffix("-sig"), "replace").decode(encoding)


def comments(draft: Draft) -> list[Splice]:
    by_line: dict[int, list[Note]] = defaultdict(list)
    for note in draft.notes:
        by_line[note.line].append(note)
    above: dict[int, dict[str, Statement]] = defaultdict(dict)
    out: list[Splice] = []
    for line, notes in by_line.items():
        texts = dict.fromkeys(comment(note.why, draft.encoding) for note in notes)
        behind = f"  {next(iter(texts))}"
        width = len(draft.tree.line(line).expandtabs()) + sum(note.grown for note in notes)
        if len(texts) == 1 and width + len(behind) <= WIDTH and _free(draft.tree, line):
            end = draft.tree.start_of(line) + len(draft.tree.line(line))
            out.append(Splice(start=end, end=end, text=behind, rank=Rank.TRAILING))
            continue
        for text in texts:
            above[notes[0].statement.first].setdefault(text, notes[0].statement)
    for first, wanted in above.items():
        out += [_line(draft.tree, first, text) for text in wanted]
    return out


def _line(tree: Tree, first: int, text: str) -> Splice:
    start = tree.start_of(first)
    whole = f"{tree.indent(first)}{DEEPER}{text}{tree.newline(first)}"
    return Splice(start=start, end=start, text=whole, rank=Rank.NOTE)


def _free(tree: Tree, line: int) -> bool:
    """Return whether a comment can stand at the end of a line."""
    if line in tree.comments or tree.ends_in_string(line):
        return False
    return not tree.line(line).endswith("\\")


def marked(tree: Tree, statement: Statement, text: str) -> bool:
    """Return whether a comment stands in the statement or directly above it."""
    above = statement.first - 1
    while above >= 1 and (own := tree.own_comment(above)):
        if own == text:
            return True
        above -= 1
    lines = range(statement.first, statement.last + 1)
    return any((found := tree.comments.get(n)) and found.value == text for n in lines)
