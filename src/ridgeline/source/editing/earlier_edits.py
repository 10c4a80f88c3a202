"""Where the lines of a file are after the same edits were made before, so that edits that name the
lines of the original find them in the edited file."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ridgeline.records.edit import Edit, Import, Insert, Keyword, Replace, Rewrite, Top, Within
from ridgeline.source.editing.draft import comment, marked
from ridgeline.source.editing.replace import WAS_LINES
from ridgeline.source.editing.tree import MARK, Cannot, Tree


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
