"""Whole lines by others, where they are what they are said to be."""

import libcst as cst

from ridgeline.records.edit import Rewrite
from ridgeline.source.editing.cannot import Cannot
from ridgeline.source.editing.comment import comment
from ridgeline.source.editing.draft import Draft
from ridgeline.source.editing.splice import DEEPER, Rank, Splice
from ridgeline.source.editing.tree import Tree
from ridgeline.source.editing.within import whole


def rewrite(edit: Rewrite, draft: Draft) -> bool:
    """False where the others stand there already."""
    tree = draft.tree
    before, after = edit.before.split("\n"), edit.after.split("\n")
    if edit.last - edit.first + 1 != len(before) or _lines(tree, edit.first, before) != before:
        here = [line.strip() for line in _lines(tree, edit.first, after)]
        if here == [line.strip() for line in after]:
            return False
        raise Cannot(f"lines {edit.first} to {edit.last} are not what they were")
    first, last = whole(tree, edit.first, edit.last)
    if (first.first, last.last) != (edit.first, edit.last):
        raise Cannot(f"lines {edit.first} to {edit.last} are no whole statements")
    indent, newline = tree.indent(edit.first), tree.newline(edit.first)
    if not after[0].startswith(indent) or not after[0].strip():
        raise Cannot("its first line is indented otherwise")
    if any(edit.first <= line <= edit.last for line in draft.beside):
        raise Cannot("another edit is put beside one of its statements")
    draft.rewritten.append((edit.first, edit.last))
    start, end = tree.start_of(edit.first), tree.start_of(edit.last) + len(tree.line(edit.last))
    note = f"{indent}{DEEPER}{comment(edit.why, draft.encoding)}{newline}"
    draft.splices += [
        Splice(start=start, end=start, text=note, rank=Rank.NOTE),
        # from behind the first line's indentation: a `with` put around it adds its level there
        Splice(
            start=start + len(tree.line(edit.first)) - len(tree.line(edit.first).lstrip(" \t\f")),
            end=end,
            text=newline.join(_deeper(after, indent)),
            rank=Rank.TEXT,
        ),
    ]
    return True


def _lines(tree: Tree, first: int, like: list[str]) -> list[str]:
    return [tree.line(number) for number in range(first, first + len(like))]


def _deeper(after: list[str], indent: str) -> list[str]:
    """The first without its indentation; lines that begin inside a string stay as they are."""
    opened = "if 1:\n" if indent else ""
    try:
        ours = Tree(opened + "\n".join(after) + "\n")
    except cst.ParserSyntaxError as error:
        raise Cannot("its code does not parse") from error
    out = [after[0][len(indent) :]]
    for number, line in enumerate(after[1:], 2 + bool(opened)):
        bare = line.lstrip(" \t")
        if bare and not ours.in_string(number):
            line = f"{line[: len(line) - len(bare)]}{DEEPER}{bare}"
        out.append(line)
    return out
