"""The comments that say why: behind the line that was changed where they fit, else above its
statement."""

import re
from collections import defaultdict

from ridgeline.source.editing.draft import Draft, Note
from ridgeline.source.editing.splice import DEEPER, Rank, Splice
from ridgeline.source.editing.tree import MARK, Statement, Tree

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
    """A comment can stand at the end of that line."""
    if line in tree.comments or tree.ends_in_string(line):
        return False
    return not tree.line(line).endswith("\\")


def marked(tree: Tree, statement: Statement, text: str) -> bool:
    """That comment stands in the statement or directly above it."""
    above = statement.first - 1
    while above >= 1 and (own := tree.own_comment(above)):
        if own == text:
            return True
        above -= 1
    lines = range(statement.first, statement.last + 1)
    return any((found := tree.comments.get(n)) and found.value == text for n in lines)
