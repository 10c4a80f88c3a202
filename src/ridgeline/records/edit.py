"""An edit of the user's source: what is to stand where, and why. Made from what was seen while the
program ran; carried out on a copy by `ridgeline.source.editing`."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Reason


class Keyword(Struct, frozen=True, kw_only=True, tag=True):
    """A keyword of the call on that line: `pin_memory=True` of `DataLoader(…)`."""

    file: str
    line: int
    """Any line of the call: run-time frames name the first or the last one, by version."""
    call: str
    """Its last name: DataLoader, AdamW, autocast."""
    name: str
    value: str
    """The value as Python writes it."""
    why: str
    positional: tuple[str, ...] = ()
    """What that call takes by position, in order, where its signature was seen; `*` for any number.
    Without it only calls of torch that are known by name may hold bare arguments."""


class Insert(Struct, frozen=True, kw_only=True, tag=True):
    """Statements before or after the one on that line, in its block; of several on a line before
    the first, after the last."""

    file: str
    line: int
    where: Literal["before", "after"]
    text: str
    """The statements, not indented; may be several lines."""
    why: str


class Within(Struct, frozen=True, kw_only=True, tag=True):
    """The statements on those lines, and no others, put into `with …:`."""

    file: str
    first: int
    last: int
    header: str
    """torch.autocast("cuda", dtype=torch.bfloat16)"""
    why: str


class Replace(Struct, frozen=True, kw_only=True, tag=True):
    """An expression in the statement on that line by another."""

    file: str
    line: int
    before: str
    """Compared without its whitespace and comments."""
    after: str
    why: str


class Rewrite(Struct, frozen=True, kw_only=True, tag=True):
    """Whole lines of one block by others: a function's arithmetic, an import."""

    file: str
    first: int
    last: int
    before: str
    """The lines as they stand there, joined by \\n: where they differ nothing is done."""
    after: str
    """Indented as they are, joined by \\n."""
    why: str


class Top(Struct, frozen=True, kw_only=True, tag=True):
    """Statements that stand for the whole program: `start` before its first import (environment
    variables), else after its imports (torch's flags)."""

    file: str
    where: Literal["start", "after imports"]
    text: str
    why: str


class Import(Struct, frozen=True, kw_only=True, tag=True):
    """An import that must be there: `import torch`. Nothing, where the name is bound already."""

    file: str
    text: str
    why: str = ""


Edit = Keyword | Insert | Within | Replace | Rewrite | Top | Import


class Refused(Struct, frozen=True, kw_only=True):
    """An edit that could not be carried out safely."""

    edit: Edit
    reason: Reason
    """What to write by hand, and where: a `ByHand`. The cause says why the edit was refused."""


class Patched(Struct, frozen=True, kw_only=True):
    """One file, patched."""

    file: str
    text: str
    """The whole new source; the old one where nothing was done."""
    diff: str
    """Unified; empty where nothing was done."""
    encoding: str = "utf-8"
    """The file's encoding, in which its text gives the file's bytes; `utf-8-sig` begins with the
    mark."""
    done: tuple[Edit, ...] = ()
    already: tuple[Edit, ...] = ()
    """The edits that stood there before."""
    refused: tuple[Refused, ...] = ()
