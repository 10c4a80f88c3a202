"""The text of a file with its edits made, all in one pass over the old text.

`shift` tells where the lines of a file are after the same edits were made before, so that edits
that name the lines of the original find them in the edited file.
"""

import difflib
import re
import warnings
from collections.abc import Iterator, Sequence

import libcst as cst
import msgspec
from msgspec import Struct

from ridgeline.records.edit import (
    Edit,
    Import,
    Insert,
    Keyword,
    Patched,
    Refused,
    Replace,
    Rewrite,
    Top,
    Within,
)
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import ByHand, Obstacle
from ridgeline.source.editing.draft import Draft, comment, comments, composed, marked
from ridgeline.source.editing.expressions import WAS_LINES, arguments, keyword, replace
from ridgeline.source.editing.statements import import_, insert, rewrite, top, within
from ridgeline.source.editing.tree import MARK, Cannot, Tree
from ridgeline.source.file import Decoded, decoded, encoded

_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")


class Shift(Struct, frozen=True, kw_only=True):
    added: frozenset[int] = frozenset()
    """Lines that the edits added."""
    gone: tuple[tuple[int, int], ...] = ()
    """Lines after which lines were removed, with the number removed."""

    def now(self, line: int) -> int:
        """Return where a line of the original is in the edited file."""
        gone = dict(self.gone)
        at, left = 0, line
        while left > 0:
            at += 1
            while at in self.added:
                at += 1
            left -= 1 + gone.get(at, 0)
        return at


class Outcome(Struct, frozen=True, kw_only=True):
    text: str
    done: tuple[int, ...] = ()
    already: tuple[int, ...] = ()
    refused: tuple[tuple[int, Reason], ...] = ()
    """The index of each refused edit, and the reason."""


def patched(file: str, text: bytes, edits: Sequence[Edit]) -> Patched:
    """Return the new source, and what became of each edit. Lines are those of the text as given; a
    text that has these edits already stays as it is, wherever they have moved its lines to."""
    source = decoded(text)
    try:
        outcome = _outcome(source, list(edits))
    except Cannot as cannot:
        outcome = Outcome(
            text=source.text, refused=tuple((at, cannot.reason) for at in range(len(edits)))
        )
    return Patched(
        file=file,
        text=outcome.text,
        diff=_difference(file, source.text, outcome.text),
        encoding=source.encoding,
        done=tuple(edits[at] for at in outcome.done),
        already=tuple(edits[at] for at in outcome.already),
        refused=tuple(
            Refused(edit=edits[at], reason=by_hand(edits[at], file, why))
            for at, why in outcome.refused
        ),
    )


def _outcome(source: Decoded, edits: list[Edit]) -> Outcome:
    if source.fault:
        raise Cannot(Obstacle.NOT_DECODED, error=source.fault)
    _check(source.text, source)
    try:
        tree = Tree(source.text)
    except cst.ParserSyntaxError as error:
        raise Cannot(Obstacle.NOT_PARSED, line=error.raw_line) from error
    except RecursionError as error:
        raise Cannot(Obstacle.NESTED_TOO_DEEPLY) from error
    before = shift(tree, edits, source.encoding)
    plain = _carried_out(source, tree, edits, before.added)
    if before.added or before.gone:
        again = _carried_out(source, tree, [_moved(e, before) for e in edits], before.added)
        # more of them stand where these lines have moved to: it is the same edits again
        if len(again.already) > len(plain.already):
            late = [(at, because(Obstacle.NOT_TOGETHER)) for at in again.done]
            refused = tuple(sorted((*again.refused, *late)))
            return Outcome(text=source.text, already=again.already, refused=refused)
    return plain


def _moved(edit: Edit, before: Shift) -> Edit:
    if isinstance(edit, Within | Rewrite):
        first, last = before.now(edit.first), before.now(edit.last)
        return msgspec.structs.replace(edit, first=first, last=last)
    if isinstance(edit, Keyword | Insert | Replace):
        return msgspec.structs.replace(edit, line=before.now(edit.line))
    return edit


def _carried_out(source: Decoded, tree: Tree, edits: list[Edit], added: frozenset[int]) -> Outcome:
    """Make all edits at once. If the resulting text is invalid, make them one by one and leave out
    those that make it invalid."""
    outcome = _tried(source, tree, edits, added, range(len(edits)))
    if isinstance(outcome, Outcome):
        return outcome
    kept: list[int] = []
    spoilt: list[tuple[int, Reason]] = []
    best = Outcome(text=source.text)
    for at in range(len(edits)):
        tried = _tried(source, tree, edits, added, [*kept, at])
        if isinstance(tried, Outcome):
            kept.append(at)
            best = tried
        else:
            spoilt.append((at, tried))
    return msgspec.structs.replace(best, refused=tuple(sorted((*best.refused, *spoilt))))


def _tried(
    source: Decoded, tree: Tree, edits: list[Edit], added: frozenset[int], which: Sequence[int]
) -> Outcome | Reason:
    """Return the outcome of some of the edits, or why their text is invalid."""
    draft = Draft(tree, source.encoding, added)
    done: list[int] = []
    already: list[int] = []
    refused: list[tuple[int, Reason]] = []
    # imports first: what they bind may be used by the others
    for at in sorted(which, key=lambda at: not isinstance(edits[at], Import)):
        try:
            if edits[at] in [edits[n] for n in done] or not _planned(edits[at], draft):
                already.append(at)
            else:
                done.append(at)
        except Cannot as cannot:
            refused.append((at, cannot.reason))
    try:
        pieces = [piece for asked in draft.calls.values() for piece in arguments(draft, asked)]
        pieces += [*draft.splices, *comments(draft)]
        text = composed(tree.text, pieces, draft.runs)
        if done:
            _check(text, source)
    except Cannot as cannot:
        return cannot.reason
    return Outcome(
        text=text,
        done=tuple(sorted(done)),
        already=tuple(sorted(already)),
        refused=tuple(sorted(refused)),
    )


def _planned(edit: Edit, draft: Draft) -> bool:
    match edit:
        case Keyword():
            return keyword(edit, draft)
        case Insert():
            return insert(edit, draft)
        case Within():
            return within(edit, draft)
        case Replace():
            return replace(edit, draft)
        case Rewrite():
            return rewrite(edit, draft)
        case Top():
            return top(edit, draft)
        case Import():
            return import_(edit, draft)


def _check(text: str, source: Decoded) -> None:
    """Check that a text compiles, and that its bytes are read back as this text."""
    try:
        raw = encoded(text, source.encoding)
    except UnicodeError as error:
        raise Cannot(Obstacle.NOT_ENCODED, encoding=source.encoding) from error
    back = decoded(raw)
    if back.fault or (back.text, back.encoding) != (text, source.encoding):
        raise Cannot(Obstacle.OTHER_ENCODING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "<patched>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise Cannot(
            Obstacle.DOES_NOT_COMPILE, error=f"{error.msg}, line {error.lineno}"
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Cannot(Obstacle.DOES_NOT_COMPILE, error=str(error)) from error


def _difference(file: str, old: str, new: str) -> str:
    if old == new:
        return ""
    out = []
    name = f"{file}\t" if " " in file else file  # without it `patch` ends the name at the space
    for line in difflib.unified_diff(_LINE.findall(old), _LINE.findall(new), name, name):
        ended = line.endswith(("\n", "\r"))
        out.append(line if ended else f"{line}\n\\ No newline at end of file\n")
    return "".join(out)


def by_hand(edit: Edit, file: str, why: Reason | None = None) -> Reason:
    """Return what to write in place of an edit that was refused, and why it was."""
    match edit:
        case Keyword():
            return because(
                ByHand.GIVE_KEYWORD, cause=why, file=file, line=edit.line, call=edit.call,
                name=edit.name, value=edit.value,
            )  # fmt: skip
        case Insert():
            return because(
                ByHand.PUT_BESIDE, cause=why, file=file, line=edit.line, where=edit.where,
                text=_indented(edit.text),
            )  # fmt: skip
        case Within():
            return because(
                ByHand.PUT_WITHIN, cause=why, file=file, first=edit.first, last=_last(edit),
                header=edit.header,
            )  # fmt: skip
        case Replace():
            return because(
                ByHand.REPLACE, cause=why, file=file, line=edit.line, before=edit.before,
                text=_indented(edit.after),
            )  # fmt: skip
        case Rewrite():
            return because(
                ByHand.REWRITE, cause=why, file=file, first=edit.first, last=_last(edit),
                text=edit.after,
            )  # fmt: skip
        case Import():
            return because(ByHand.PUT_IMPORT, cause=why, file=file, text=_indented(edit.text))
    code = ByHand.PUT_AT_START if edit.where == "start" else ByHand.PUT_AFTER_IMPORTS
    return because(code, cause=why, file=file, text=_indented(edit.text))


def _last(edit: Within | Rewrite) -> int | None:
    return edit.last if edit.last != edit.first else None


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.strip("\n").split("\n"))


def shift(tree: Tree, edits: Sequence[Edit], encoding: str) -> Shift:
    marks = [n for n, found in tree.comments.items() if found.value.startswith(MARK)]
    if not marks:
        return Shift()
    added = set(_added(tree, marks, edits, encoding))
    gone: dict[int, int] = {}
    for edit in edits:
        note = comment(edit.why, encoding)
        if isinstance(edit, Keyword):
            added |= _keyword_lines(tree, edit, note)
        elif isinstance(edit, Replace):
            for line, was in _replaced(tree, marks, note):
                less = was - (edit.after.strip().count("\n") + 1)
                gone[line] = max(less, 0)
                added |= set(range(line + 1 + less, line + 1))
        elif isinstance(edit, Rewrite):
            for line in _rewritten(tree, marks, note, edit):
                count = edit.after.count("\n") + 1
                less = edit.before.count("\n") + 1 - count
                gone[line + count] = max(less, 0)
                added |= set(range(line + count + 1 + less, line + count + 1))
    return Shift(added=frozenset(added), gone=tuple(gone.items()))


def _added(tree: Tree, marks: Sequence[int], edits: Sequence[Edit], encoding: str) -> Iterator[int]:
    """Yield the lines of our own comments, and of the statements that we put below them."""
    bodies = [
        (comment(edit.why, encoding), body) for edit in edits if (body := _body(edit)) is not None
    ]
    for line in marks:
        own = tree.own_comment(line)
        if not own:
            continue
        yield line
        for note, body in bodies:
            here = [tree.line(line + 1 + at).strip() for at in range(len(body))]
            if note == own and here == body:
                yield from range(line + 1, line + 1 + len(body))


def _replaced(tree: Tree, marks: Sequence[int], note: str) -> Iterator[tuple[int, int]]:
    """Yield where an expression was replaced by one with another number of lines, and how many
    lines the old one had."""
    opens, closes = (note + WAS_LINES).split("{}")
    for line in marks:
        text = tree.comments[line].value
        count = text.removeprefix(opens).removesuffix(closes)
        if text.startswith(opens) and count.isdigit():
            if not tree.own_comment(line):
                yield line, int(count)
                continue
            below = line
            while tree.own_comment(below):
                below += 1
            yield tree.at(below).statement.last, int(count)


def _rewritten(tree: Tree, marks: Sequence[int], note: str, edit: Rewrite) -> Iterator[int]:
    """Yield the lines of the comments above rewritten lines."""
    wanted = [line.strip() for line in edit.after.split("\n")]
    for line in marks:
        if tree.own_comment(line) == note:
            here = [tree.line(line + 1 + at).strip() for at in range(len(wanted))]
            if here == wanted:
                yield line


def _body(edit: Edit) -> list[str] | None:
    if isinstance(edit, Within):
        return [f"with {edit.header}:"]
    if isinstance(edit, Insert | Top | Import):
        return [line.strip() for line in edit.text.strip("\r\n").split("\n")]
    return None


def _keyword_lines(tree: Tree, edit: Keyword, note: str) -> set[int]:
    """Return the lines that hold only the keyword, in a statement with our comment."""
    pair = f"{edit.name}={edit.value}"
    out = set()
    for line in range(1, tree.count + 1):
        text = tree.line(line).strip()
        if text.startswith(pair) and text[len(pair) : len(pair) + 1] in ("", ",", ")", " "):
            try:
                statement = tree.at(line).statement
            except Cannot:
                continue
            if statement.first < line and marked(tree, statement, note):
                out.add(line)
    return out
