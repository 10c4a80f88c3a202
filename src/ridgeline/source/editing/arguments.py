"""Keywords put into a call in the layout it has: on its line, or each on a line of its own."""

import re

import libcst as cst

from ridgeline.source.editing.comment import WIDTH, comment
from ridgeline.source.editing.draft import Asked, Draft, Note
from ridgeline.source.editing.splice import DEEPER, Rank, Splice
from ridgeline.source.editing.tree import Tree

_SIMPLE = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.Dict)
_GAP = re.compile(r"(?:\s|\\|#[^\r\n]*)*")


def arguments(draft: Draft, asked: Asked) -> list[Splice]:
    tree, call = draft.tree, asked.call
    close = tree.span(call)[1] - 1
    pairs = [f"{name}={value}" for name, value, _ in asked.keywords]
    if not call.args:
        _note(draft, asked, close, ", ".join(pairs))
        return [_piece(close, ", ".join(pairs))]
    options = [argument for argument in call.args if argument.star == "**"]
    if options:
        return _among(draft, asked, options[0])
    last = call.args[-1]
    start, end = tree.span(last)
    comma = isinstance(last.comma, cst.Comma)
    after = _skipped(tree.text, end) + 1 if comma else end
    if _alone(tree, call):
        ended = tree.line_at(after)
        if ended < tree.line_at(close) and "\\" not in tree.text[after : tree.start_of(ended + 1)]:
            return _own_lines(draft, asked, comma, after)
        if not comma:
            lead = f",{tree.newline(ended)}{tree.indent(tree.line_at(start))}{DEEPER}"
            _note(draft, asked, end, pairs[-1])
            return [_piece(end, "".join(lead + pair for pair in pairs))]
    joined = f" {', '.join(pairs)}," if comma else f", {', '.join(pairs)}"
    _note(draft, asked, after, joined)
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar and not last.keyword:
        return [_piece(start, "("), _piece(end, ")" + joined)]
    return [_piece(after, joined)]


def _among(draft: Draft, asked: Asked, options: cst.Arg) -> list[Splice]:
    """`**options` may give it too: what is named last counts."""
    start, end = draft.tree.span(options.value)
    before, after = ("{**", "") if isinstance(options.value, _SIMPLE) else ("{**(", ")")
    after += "".join(f', "{name}": {value}' for name, value, _ in asked.keywords) + "}"
    _note(draft, asked, end, before + after)
    return [_piece(start, before), _piece(end, after)]


def _alone(tree: Tree, call: cst.Call) -> bool:
    """Its last argument has a line to itself, as the ones before it do."""
    starts = [tree.span(argument)[0] for argument in call.args[-2:]]
    lines = [tree.line_at(start) for start in starts]
    if tree.text[tree.start_of(lines[-1]) : starts[-1]].strip():
        return False
    before = tree.text[tree.start_of(lines[0]) : starts[0]].strip()
    return len(call.args) <= 2 or (lines[0] != lines[-1] and not before)


def _own_lines(draft: Draft, asked: Asked, comma: bool, after: int) -> list[Splice]:
    tree = draft.tree
    ended = tree.line_at(after)
    offset = tree.start_of(ended) + len(tree.line(ended))
    newline = tree.newline(ended)
    indent = tree.indent(tree.line_at(tree.span(asked.call.args[-1])[0]))
    lead = f"{newline}{indent}{DEEPER}"
    out = [] if comma else [_piece(after, ",")]
    text = ""
    for at, (name, value, why) in enumerate(asked.keywords):
        ends = "," if comma or at < len(asked.keywords) - 1 else ""
        pair, note = f"{name}={value}{ends}", comment(why, draft.encoding)
        if len(indent.expandtabs()) + len(pair) + 2 + len(note) <= WIDTH:
            text += f"{lead}{pair}  {note}"
        else:
            text += f"{lead}{note}{lead}{pair}"
    return [*out, Splice(start=offset, end=offset, text=text, rank=Rank.LINES)]


def _note(draft: Draft, asked: Asked, offset: int, text: str) -> None:
    """The whole growth goes to the first note: they are added up."""
    line = draft.tree.line_at(offset)
    for at, (_, _, why) in enumerate(asked.keywords):
        draft.notes.append(Note(asked.statement, line, why, 0 if at else len(text)))


def _piece(offset: int, text: str) -> Splice:
    return Splice(start=offset, end=offset, text=text, rank=Rank.TEXT)


def _skipped(text: str, offset: int) -> int:
    found = _GAP.match(text, offset)
    return found.end() if found else offset
