"""A document as Markdown: for a pull request, an issue, a note."""

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from msgspec.structs import replace

from ridgeline.report.document import (
    Block,
    Claim,
    Claims,
    Code,
    Commands,
    Document,
    Item,
    Labelled,
    Paragraph,
    Points,
    Section,
    SplitChart,
    Table,
    WaterfallChart,
    Words,
    plain,
)
from ridgeline.report.plain import printable, shorten

MAX_NAME_LENGTH = 100
"""Names of kernels are longer than a comment is wide."""
MAX_COMMENT_LENGTH = 65_536
"""Characters that a comment on GitHub, or the text of a pull request, may have."""
FEWER_ROWS = (20, 5)
"""Rows of each table where a text with more would not fit a comment."""
_LEFT_OUT = "The rest does not fit a comment; the page (.html) has it."
_SPECIAL = re.compile(r"([\\`*|~]|\](?=[(\[:]))")
"""A bracket only where a link would follow it: [1.27, 1.35] stays readable in the source."""
_EDGE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""An underscore between letters is plain in GitHub's Markdown; at an edge (__init__) it is not."""


def render(
    document: Document, *, full: bool = False, max_rows: int | None = None, picture: str = ""
) -> str:
    """Return the document as Markdown, with at most `max_rows` of each table if a number is given.
    `picture` is the name of the drawn waterfall, beside this file. Unless rows were asked for, the
    text fits a comment: of one that does not, tables and findings are shortened, and then the last
    parts left out."""
    text = _text(document, _Markdown(full, max_rows, picture))
    if full or max_rows is not None:
        return text
    for rows in FEWER_ROWS:
        if len(text) <= MAX_COMMENT_LENGTH:
            return text
        text = _text(document, _Markdown(full, rows, picture, brief=True))
    left_out = 0
    while len(text) > MAX_COMMENT_LENGTH and left_out < len(document.blocks):
        left_out += 1
        blocks = document.blocks[: len(document.blocks) - left_out]
        note = Paragraph(_LEFT_OUT, "quiet")
        shorter = replace(document, blocks=(*blocks, note))
        text = _text(shorter, _Markdown(full, FEWER_ROWS[-1], picture, brief=True))
    return text


def _text(document: Document, markdown: "_Markdown") -> str:
    lines = [f"### {escaped(document.answer_text)}", ""]
    if document.about:
        lines += [escaped(" · ".join(document.about)), ""]
    if document.facts:
        lines += [escaped(" · ".join(document.facts)), ""]
    lines += markdown.blocks(document.blocks, 4)
    kept = [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]
    return "\n".join(kept).rstrip("\n") + "\n"


def escaped(text: str) -> str:
    """Return a text as written, on one line: no cell, tag, link or emphasis of its own."""
    flat = printable(" ".join(text.split()))
    safe = _EDGE.sub(r"\\_", _SPECIAL.sub(r"\\\1", flat))
    return safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def inline(words: Words) -> str:
    """Return a sentence; spans of code stay code."""
    if isinstance(words, str):
        return escaped(words)
    return "".join(
        f"`{code_text(s.text)}`" if s.code else _with_blanks(s.text, escaped(s.text)) for s in words
    )


def code_text(text: str) -> str:
    """Return a text that stands between backticks, where only a backtick is markup."""
    return printable(" ".join(text.split())).replace("`", "'")


def fence(text: str, language: str = "") -> list[str]:
    """Return a block of code that nothing inside can end. Tabs stay tabs."""
    lines = ["\t".join(map(printable, line.rstrip("\r").split("\t"))) for line in text.split("\n")]
    shown = "\n".join(lines).rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    marks = "`" * max(3, longest + 1)
    return [f"{marks}{language}", *shown.split("\n"), marks]


class _Markdown:
    def __init__(self, full: bool, max_rows: int | None, picture: str, brief: bool = False) -> None:
        """`brief` leaves out the evidence and the code of findings."""
        self.full, self.max_rows, self.picture, self.brief = full, max_rows, picture, brief

    def blocks(self, blocks: Sequence[Block], depth: int) -> list[str]:
        lines: list[str] = []
        for i, block in enumerate(blocks):
            made = self.block(block, depth)
            is_item = isinstance(block, Paragraph) and block.level in ("warning", "error")
            follows = blocks[i + 1] if i + 1 < len(blocks) else None
            joined = is_item and isinstance(follows, Paragraph) and follows.level == block.level  # type: ignore[union-attr]
            lines += made if joined or not made else [*made, ""]
        return lines

    def block(self, block: Block, depth: int) -> list[str]:
        if isinstance(block, Paragraph):
            return [_paragraph(block)]
        if isinstance(block, Points):
            marks = (f"{i}." if block.numbered else "-" for i in range(1, len(block.points) + 1))
            return [f"{m} {inline(w)}" for m, w in zip(marks, block.points, strict=True)]
        if isinstance(block, Labelled):
            return _items(block.items)
        if isinstance(block, Table):
            return self.table(block)
        if isinstance(block, Code):
            label = [f"{escaped(block.label)}:", ""] if block.label else []
            return [*label, *fence(block.text, block.language)]
        if isinstance(block, Commands):
            return [f"- {escaped(c.why)}: `{code_text(c.text)}`" for c in block.commands]
        if isinstance(block, Claims):
            return [line for i, c in enumerate(block.claims, 1) for line in self.claim(i, c)]
        if isinstance(block, Section):
            return self.section(block, depth)
        if isinstance(block, SplitChart) and not block.has_table:
            parts = (f"**{escaped(p.name)}** {escaped(p.figure)}" for p in block.parts if p.value)
            return [" · ".join(parts)]
        if isinstance(block, WaterfallChart) and self.picture:
            return [f"![{escaped(block.title)}]({quote(self.picture)})"]
        return []

    def section(self, section: Section, depth: int) -> list[str]:
        body = self.blocks(section.blocks, depth + 1)
        if not body:
            return []
        title = escaped(section.title)
        if section.folded:
            # GitHub reads Markdown inside <details> only after an empty line.
            return [f"<details><summary>{title}</summary>", "", *body, "</details>"]
        return [f"{'#' * min(depth, 6)} {title}", "", *body] if title else body

    def claim(self, number: int, claim: Claim) -> list[str]:
        """Return a line for a finding; what it rests on, and the code, are folded away."""
        place = f" `{code_text(claim.place)}`" if claim.place else ""
        lines = [f"{number}. **{inline(claim.text)}**{place}: {escaped(claim.gain)}", ""]
        if self.brief:
            return lines
        folded = [
            f"- {escaped(item.label)}: {inline(words)}"
            for item in claim.evidence
            for words in item.lines
        ]
        if plain(claim.doubt):
            folded.append(f"- it may be wrong: {inline(claim.doubt)}")
        if claim.code:
            folded += ["", *fence("\n".join(claim.code), "python")]
        if not folded:
            return lines
        title = "the fix, and the evidence" if claim.code else "the evidence"
        folded = [f"<details><summary>{title}</summary>", "", *folded, "", "</details>", ""]
        # Indented by three, so that all of it belongs to the number.
        return [*lines, *(f"   {line}" if line else "" for line in folded)]

    def table(self, table: Table) -> list[str]:
        rows, more = table.shown(self.full, self.max_rows)
        if not rows:
            return []
        noted = any(row.note for row in rows)
        used = [i for i in range(len(table.columns)) if not i or any(r.cells[i].text for r in rows)]
        names = [escaped(table.columns[i].name) for i in used]
        rules = ["---:" if i and table.columns[i].kind == "number" else "---" for i in used]
        lines = [_line([*names, *["note"] * noted]), _line([*rules, *["---"] * noted])]
        for row in rows:
            cells = [
                escaped(shorten(cell.text, MAX_NAME_LENGTH) if c.kind in ("name", "place")
                        else cell.text)
                for cell, c in ((row.cells[i], table.columns[i]) for i in used)
            ]  # fmt: skip
            lines.append(_line([*cells, *[escaped(row.note)] * noted]))
        return [*lines, "", more] if more else lines


def _paragraph(paragraph: Paragraph) -> str:
    text = inline(paragraph.text)
    if paragraph.level in ("warning", "error"):
        return f"- **{paragraph.level}**: {text}"
    return f"*{text}*" if paragraph.level == "doubt" else text


def _items(items: Iterable[Item]) -> list[str]:
    lines = []
    for item in items:
        mark = f"**{item.level}**: " if item.level in ("warning", "error") else ""
        for words in item.lines:
            colon = "" if item.label.endswith("?") else ":"
            label = f"**{escaped(item.label)}**{colon} " if item.label else ""
            lines.append(f"- {label}{mark}{inline(words)}")
    return lines


def _with_blanks(text: str, shown: str) -> str:
    """Keep the blanks at the ends of a text, which part it from the code beside it."""
    lead = " " * (text != text.lstrip())
    tail = " " * (text != text.rstrip() and bool(text.strip()))
    return f"{lead}{shown}{tail}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
