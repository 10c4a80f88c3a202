"""A document for people at a terminal: the answer first, then at most a screen of what it rests on.

`full` adds the sections and rows that the short view leaves out.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ridgeline.report.document import (
    Block,
    Claim,
    Claims,
    Code,
    Commands,
    Detail,
    Document,
    ForestChart,
    Item,
    Labelled,
    Level,
    Paragraph,
    Points,
    RooflineChart,
    Section,
    SplitChart,
    Table,
    Words,
    plain,
)
from ridgeline.report.plain import printable
from ridgeline.report.renderers.terminal_charts import forest_lines, roofline_lines, split_lines
from ridgeline.report.renderers.terminal_tables import (
    fitted,
    flowed,
    styled,
    table_lines,
    widest,
    wrapped,
)

MIN_LABEL_COLUMNS = 11
"""Labels are padded to this width, so that texts of a document begin at the same column."""
MIN_BESIDE_COLUMNS = 40
"""With less room beside its label, a text stands below it."""
CLAIM_INDENT = 6
"""The column in which a claim begins; its number stands before it."""
MIN_CLAIM_COLUMNS = 46
"""With less room a claim would be broken into stubs: its place and gain stand below it."""
MAX_CODE_LINES = 12
"""Lines of a fix in the short view; of a longer one the first, and how many more there are."""
MAX_DOUBT_LINES = 2
_GAP = 3
_LEVELS: dict[Level, str] = {
    "plain": "", "quiet": "dim", "doubt": "yellow", "warning": "yellow", "error": "bold red",
}  # fmt: skip
_PREFIXED: tuple[Level, ...] = ("warning", "error")
_ASCII = str.maketrans({
    "█": "#", "▏": "|", "·": "-", "…": "~", "×": "x", "µ": "u", "°": " ", "→": ">", "—": "-",
    "₂": "2", "≤": "<", "≥": ">", "±": "+", "─": "-", "│": "|", "├": "|", "┤": "|", "●": "o",
    "░": ".", "╱": "/", "└": "+", "▲": "^", "◀": "<", "▶": ">", "✓": "y", "–": "-",
})  # fmt: skip
"""One character for one, so that columns stay where they are."""


def render(
    document: Document, console: Console, *, full: bool = False, max_rows: int | None = None
) -> None:
    """Print a document. `max_rows` is how many rows of each table the person asked for."""
    _Terminal(console, full, max_rows).document(document)


def render_text(document: Document, width: int, *, full: bool = False) -> str:
    """Return what a terminal of this width shows, without colours."""
    import io

    text = io.StringIO()
    # A notebook's kernel asks for colours by FORCE_COLOR, and rich would print into its cell.
    console = Console(
        file=text, width=width, highlight=False, no_color=True, force_jupyter=False,
        force_terminal=False,
    )  # fmt: skip
    render(document, console, full=full)
    return text.getvalue()


class _Terminal:
    def __init__(self, console: Console, full: bool, max_rows: int | None) -> None:
        self.console, self.full, self.max_rows = console, full, max_rows

    def document(self, document: Document) -> None:
        self.line(Text())
        self.answer(document)
        self.blocks(document.blocks, 1, apart=True)

    def answer(self, document: Document) -> None:
        """Print the answer, and what it is about beside it where both fit, else below."""
        answer = styled(document.answer, "bold")
        about = Text(printable(" · ".join(document.about)), "dim")
        lead = Text(f" {document.label}", "bold cyan")
        edge = 1
        if document.label:
            edge = max(MIN_LABEL_COLUMNS, lead.cell_len + 1) + 1
            lead.pad_right(edge - lead.cell_len)
        else:
            lead = Text(" ")
        room = self.console.width - edge
        if answer.cell_len + about.cell_len + 3 <= room and about.plain:
            answer = Text.assemble(answer, "   ", about)
            about = Text()
        lines = wrapped(answer, room, self.console)
        lines += flowed(about, room, self.console) if about.plain else []
        if document.facts:
            facts = Text(printable(" · ".join(document.facts)))
            lines += flowed(facts, room, self.console)
        for text in lines:
            self.line(Text.assemble(lead, text))
            lead = Text(" " * edge)

    def blocks(
        self, blocks: Sequence[Block], indent: int, apart: bool = False, spaced: bool = False
    ) -> None:
        """Print blocks: `apart` with an empty line before each, while paragraphs stand together;
        `spaced` with an empty line between any two. Sections that are one line each are printed as
        one list."""
        lines: list[Item] = []
        before: Block | None = None
        for block in blocks:
            if isinstance(block, Section) and self.is_line(block):
                lines.append(_as_line(block, self.full))
                continue
            if lines:
                self.line(Text())
                self.labelled(lines, indent)
                lines, before = [], None
            if not self.sees(block.detail) or not self.has_content(block):
                continue
            together = isinstance(block, Paragraph) and (
                before is None or isinstance(before, Paragraph)
            )
            if (apart and not together) or (spaced and before is not None):
                self.line(Text())
            self.block(block, indent)
            before = block
        if lines:
            self.line(Text())
            self.labelled(lines, indent)

    def sees(self, detail: Detail) -> bool:
        return detail == "brief" or (detail == "full" and self.full)

    def is_line(self, section: Section) -> bool:
        if not self.full and section.line:
            return True
        return section.beside and self.sees(section.detail)

    def has_content(self, block: Block) -> bool:
        if isinstance(block, Section):
            return any(self.sees(b.detail) and self.has_content(b) for b in block.blocks)
        if isinstance(block, Table):
            return bool(block.rows)
        if isinstance(block, Labelled):
            return bool(block.items)
        if isinstance(block, RooflineChart | ForestChart | SplitChart):
            return bool(self.chart(block))
        return isinstance(block, Paragraph | Points | Claims | Commands | Code)

    def block(self, block: Block, indent: int) -> None:
        printers: dict[type, Any] = {
            Paragraph: self.paragraph, Table: self.table, Code: self.code, Claims: self.claims,
            Commands: self.commands, Section: self.section, Points: self.points,
        }  # fmt: skip
        if isinstance(block, Labelled):
            self.labelled(block.items, indent)
        elif type(block) in printers:
            printers[type(block)](block, indent)
        elif isinstance(block, RooflineChart | ForestChart | SplitChart):
            for text in self.chart(block):
                self.line(Text.assemble(" " * (indent + 1), text))

    def section(self, section: Section, indent: int) -> None:
        if section.title and self.sees(section.title_detail):
            self.text(section.title, indent, "bold")
            indent += 2
        self.blocks(section.blocks, indent, spaced=section.spaced)

    def paragraph(self, paragraph: Paragraph, indent: int) -> None:
        self.text(paragraph.text, indent, _LEVELS[paragraph.level], paragraph.level)

    def points(self, block: Points, indent: int) -> None:
        for number, words in enumerate(block.points, 1):
            lead = Text(" " * indent + (f"{number}. " if block.numbered else "- "))
            for line in wrapped(styled(words), self.console.width - lead.cell_len, self.console):
                self.line(Text.assemble(lead, line))
                lead = Text(" " * lead.cell_len)

    def text(self, words: Words, indent: int, style: str, level: Level = "plain") -> None:
        text = styled(words, "" if level in _PREFIXED else style)
        if level in _PREFIXED:
            text = Text.assemble((level, style), ": ", text)
        for line in flowed(text, self.console.width - indent, self.console):
            self.line(Text.assemble(" " * indent, line))

    def table(self, table: Table, indent: int) -> None:
        rows, more = table.shown(self.full, self.max_rows)
        for line in table_lines(table, rows, indent, self.full, self.console):
            self.line(line)
        if more:
            self.text(more, indent, "dim")

    def labelled(self, items: Sequence[Item], indent: int) -> None:
        """Print texts beside their labels; a label that repeats is printed once."""
        labels = widest(printable(item.label) for item in items)
        edge = indent + max(labels + 2, MIN_LABEL_COLUMNS)
        beside = self.console.width - edge >= MIN_BESIDE_COLUMNS and labels <= max(
            self.console.width // 3, MIN_LABEL_COLUMNS
        )
        last = ""
        for item in items:
            label = "" if item.label == last else printable(item.label)
            last = item.label
            style = _LEVELS[item.level]
            lead = Text(" " * indent) + Text(label, style if style not in ("", "dim") else "bold")
            if not beside:
                if label:
                    self.line(lead)
                lead = Text()
            column = edge if beside else indent + 2
            for text in self.item_lines(item, self.console.width - column):
                lead.pad_right(max(column - lead.cell_len, 0))
                self.line(Text.assemble(lead, text))
                lead = Text()

    def item_lines(self, item: Item, room: int) -> Iterable[Text]:
        style = _LEVELS[item.level]
        for words in item.lines:
            for line in [words] if not isinstance(words, str) else words.splitlines() or [""]:
                text = styled(line, "" if item.level in _PREFIXED else style)
                if item.level == "warning":
                    text = Text.assemble(("warning", style), ": ", text)
                yield from flowed(text, room, self.console)

    def code(self, code: Code, indent: int) -> None:
        if code.label:
            self.text(code.label, indent, "dim")
        lead = " " * (indent + 2)
        lines = tuple(printable(line.expandtabs(4)) for line in code.text.rstrip("\n").split("\n"))
        room = self.console.width - len(lead)
        # Outside Python a line that is too long is broken between words, indented as it was.
        for line in fitted(lines, room) if code.language == "python" else lines:
            style = _diff_style(line, code)
            for part in wrapped(Text(line, style), room, self.console) if line else [Text()]:
                self.line(Text.assemble(lead, part))

    def commands(self, block: Commands, indent: int) -> None:
        """Print each command whole and on one line, so that it can be copied."""
        width = widest(command.why for command in block.commands)
        for command in block.commands:
            gap = " " * (width - len(command.why))
            lead = f"{' ' * indent}{command.why}:{gap}  "
            self.line(Text.assemble(lead, (printable(command.text), "bold")))

    def chart(self, block: Any) -> list[Any]:
        width = self.console.width - 3
        if isinstance(block, SplitChart):
            return split_lines(block, width)
        draw: Any = roofline_lines if isinstance(block, RooflineChart) else forest_lines
        return list(draw(block, width))

    def claims(self, block: Claims, indent: int) -> None:
        places = widest(printable(claim.short_place) for claim in block.claims)
        gains = widest(printable(claim.gain) for claim in block.claims)
        room = self.console.width - CLAIM_INDENT - places - gains - 2 * _GAP
        for number, claim in enumerate(block.claims, 1):
            # The number has a style of its own, not that of the line.
            lead = Text().append(f"{number:>4}  ", "bold cyan")
            text = styled(claim.text)
            if room >= MIN_CLAIM_COLUMNS:
                first, *others = wrapped(text, room, self.console)
                first.pad_right(room - first.cell_len + _GAP)
                place = printable(claim.short_place)
                first = Text.assemble(first, (f"{place:<{places + _GAP}}", "dim"))
                first.append(printable(claim.gain), "bold")
                below: list[Text] = []
            else:
                first, *others = wrapped(text, self.console.width - CLAIM_INDENT, self.console)
                place = f"{printable(claim.short_place)} · " if claim.short_place else ""
                below = [Text.assemble((place, "dim"), (printable(claim.gain), "bold"))]
            self.line(Text.assemble(lead, first))
            for other in [*others, *below, *self.doubt(claim)]:
                self.line(Text.assemble(" " * CLAIM_INDENT, other))
            self.claim_code(claim)

    def doubt(self, claim: Claim) -> list[Text]:
        """Return why a claim may be wrong, in the few lines that a short view has for it."""
        if not plain(claim.doubt):
            return []
        room = self.console.width - CLAIM_INDENT
        text = Text.assemble("it may be wrong: ", styled(claim.doubt), style="dim")
        lines = wrapped(text, room, self.console)
        if len(lines) > MAX_DOUBT_LINES and not self.full:
            lines = lines[:MAX_DOUBT_LINES]
            lines[-1].truncate(room - 2)
            lines[-1].append(" …")
        return lines

    def claim_code(self, claim: Claim) -> None:
        if not claim.shows_code and not self.full:
            return
        lead = " " * (CLAIM_INDENT + 2)
        code = fitted(tuple(map(printable, claim.code)), self.console.width - len(lead))
        shown = code
        if len(code) > MAX_CODE_LINES and not self.full:
            shown = code[: MAX_CODE_LINES - 1]
        for text in shown:
            self.line(Text.assemble(lead, (text, "green")))
        if len(code) > len(shown):
            more = f"… and {len(code) - len(shown)} more lines"
            self.line(Text.assemble(lead, (more, "dim")))

    def line(self, text: Text) -> None:
        line = text.copy()
        line.rstrip()
        if not self.console.encoding.lower().startswith("utf"):
            line.plain = line.plain.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        self.console.print(line, soft_wrap=True, highlight=False)


def _as_line(section: Section, full: bool) -> Item:
    """Return a section as sentences beside its title."""
    if section.line and not full:
        doubts = [b for b in section.blocks if isinstance(b, Paragraph) and b.level == "doubt"]
        return Item(section.title, (*(_doubtful(b) for b in doubts), section.line))
    return Item(
        section.title,
        tuple(
            _doubtful(b) if b.level == "doubt" else b.text
            for b in section.blocks
            if isinstance(b, Paragraph)
        ),
    )


def _doubtful(paragraph: Paragraph) -> Words:
    from ridgeline.report.document import Span

    return (Span(plain(paragraph.text), "unsure"),)


def _diff_style(line: str, code: Code) -> str:
    if code.language != "diff":
        return "green" if code.language == "python" else ""
    if line.startswith(("--- ", "+++ ", "@@")):
        return "dim"
    return {"+": "green", "-": "red"}.get(line[:1], "")
