"""The document every result becomes before it has a format.

A view (`report/views/`) turns a result into a `Document`; a renderer (`report/renderers/`) turns a
document into text. A view knows no format and a renderer knows no result. Texts are plain: whatever
a user's names contain, renderers escape it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from ridgeline.report.drawings import Drawing

Tone = Literal["plain", "quiet", "good", "bad", "unsure"]
Level = Literal["plain", "quiet", "doubt", "warning", "error"]
Detail = Literal["brief", "full", "page"]
"""Where a block is shown: everywhere, at a terminal only in the full view, or never at a
terminal."""
ColumnKind = Literal["number", "words", "name", "names", "place"]
"""Numbers stand to the right. Names and places may be shortened where there is little room; of
several names, which dots separate, as many are shown as fit. Words and numbers are never cut."""


class Span(Struct, frozen=True):
    """A piece of a sentence."""

    text: str
    tone: Tone = "plain"
    bold: bool = False
    code: bool = False


Words = str | tuple[Span, ...]


def prose(text: str) -> Words:
    """Return a sentence in which text between backticks is code. Backticks that do not come in
    pairs stay as they are."""
    pieces = text.split("`")
    if len(pieces) == 1 or len(pieces) % 2 == 0:
        return text
    return tuple(Span(piece, code=i % 2 == 1) for i, piece in enumerate(pieces) if piece)


def plain(words: Words) -> str:
    """Return the words without tones; code stands between backticks."""
    if isinstance(words, str):
        return words
    return "".join(f"`{span.text}`" if span.code else span.text for span in words)


class Cell(Struct, frozen=True):
    text: str
    number: float | None = None
    """The value behind the text, in the unit of its column, for sorting and plotting."""
    tone: Tone = "plain"
    bold: bool = False
    bar: float | None = None
    """Its share of the largest value that it is compared with, which a page draws as a bar."""


class Column(Struct, frozen=True):
    name: str
    kind: ColumnKind = "number"
    spare: int = 0
    """When a narrow terminal leaves the column out: 1 first, 0 next, -1 last. 2: only the full view
    has the column. A table in which every column has 0 is never cut: it continues below itself."""
    starts_part: bool = False
    """Where a table has to continue below itself, this column begins the second part."""


class Row(Struct, frozen=True):
    cells: tuple[Cell, ...]
    tone: Tone = "plain"
    bold: bool = False
    note: str = ""
    """A sentence about this row, which stands beside or below it."""
    minor: bool = False
    """Too small to be worth a line of the short view."""
    gap: bool = False
    """A new group of rows begins here."""


def row(*cells: str | Cell, **fields: Any) -> Row:
    return Row(tuple(Cell(c) if isinstance(c, str) else c for c in cells), **fields)


class Table(Struct, frozen=True, kw_only=True):
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    short: int = 0
    """How many rows the short view has; 0: all."""
    unseen: int = 0
    """How many further rows the result has that no view shows."""
    left_out: int = 0
    """How many further rows the result itself counts but does not hold."""
    rest: str = ""
    """Where to find the rows that are left out."""
    hint: str = "with --full"
    """Where to find the rows that a short view hides."""
    detail: Detail = "brief"

    def shown(self, full: bool, max_rows: int | None = None) -> tuple[tuple[Row, ...], str]:
        """Return the rows of a view, and a sentence on the others. `max_rows` is how many rows the
        person asked for."""
        rows = self.rows
        if max_rows is not None:
            rows = rows[:max_rows]
        elif not full and self.short:
            rows = (tuple(r for r in rows if not r.minor) or rows)[: self.short]
        hidden = len(self.rows) + self.unseen - len(rows)
        if not hidden + self.left_out:
            return rows, ""
        more = f"and {hidden + self.left_out:,} more"
        if hidden and not full and max_rows is None:
            return rows, f"{more}, {f'{hidden:,} of them ' if self.left_out else ''}{self.hint}"
        return rows, f"{more}, {self.rest}" if self.rest and not hidden else more


class Paragraph(Struct, frozen=True):
    text: Words
    level: Level = "plain"
    detail: Detail = "brief"


class Points(Struct, frozen=True):
    """A list, its points in any order or numbered."""

    points: tuple[Words, ...]
    numbered: bool = False
    detail: Detail = "brief"


class Item(Struct, frozen=True):
    """A label with one or more lines of text."""

    label: str
    lines: tuple[Words, ...]
    level: Level = "plain"


def item(label: str, *lines: Words, level: Level = "plain") -> Item:
    return Item(label, lines, level)


class Labelled(Struct, frozen=True):
    """Texts beside their labels."""

    items: tuple[Item, ...]
    detail: Detail = "brief"


class KeyNumber(Struct, frozen=True):
    label: str
    value: str
    note: str = ""


class KeyNumbers(Struct, frozen=True):
    """The few numbers that matter most, which a page shows large."""

    numbers: tuple[KeyNumber, ...]
    detail: Detail = "page"


class Code(Struct, frozen=True):
    text: str
    language: str = ""
    label: str = ""
    detail: Detail = "brief"


class Command(Struct, frozen=True):
    why: str
    text: str


class Commands(Struct, frozen=True):
    """Commands to type next, each with what it is for."""

    commands: tuple[Command, ...]
    detail: Detail = "brief"


class Claim(Struct, frozen=True, kw_only=True):
    """One ranked finding."""

    text: Words
    short_place: str = ""
    place: str = ""
    function: str = ""
    """The function that the place is in, where it is known."""
    kinds: tuple[str, ...] = ()
    """The kinds of events on a timeline that the finding is about."""
    gain: str = ""
    confidence: str = ""
    doubt: Words = ""
    code: tuple[str, ...] = ()
    diff: str = ""
    """The same code as lines of the program before and after, with signs, where it is known."""
    shows_code: bool = True
    """Whether a short view has room for the code."""
    evidence: tuple[Item, ...] = ()


class Claims(Struct, frozen=True):
    claims: tuple[Claim, ...]
    detail: Detail = "brief"


class RooflineMark(Struct, frozen=True, kw_only=True):
    letter: str
    intensity: float
    flops_per_s: float
    kind: Literal["compute", "memory", ""] = ""
    share: float = 0.0
    tip: str = ""


class RooflineChart(Struct, frozen=True, kw_only=True):
    """Rate over intensity, both logarithmic."""

    marks: tuple[RooflineMark, ...]
    peaks: tuple[float, ...] = ()
    """FLOP/s, the highest first."""
    bandwidth: float = 0.0
    caption: str = ""
    detail: Detail = "brief"


class IntervalMark(Struct, frozen=True, kw_only=True):
    name: str
    value: float
    low: float
    high: float
    figure: str
    tone: Tone = "plain"


class ForestChart(Struct, frozen=True, kw_only=True):
    """Ratios with their intervals on one logarithmic axis. Differences within `band` of 1 do not
    matter."""

    marks: tuple[IntervalMark, ...]
    band: float
    band_meaning: str
    title: str = "Ratios with their intervals"
    detail: Detail = "brief"


class SampleStrip(Struct, frozen=True, kw_only=True):
    name: str
    samples_ns: tuple[float, ...]
    median_ns: float
    is_baseline: bool = False


class SamplesChart(Struct, frozen=True, kw_only=True):
    """Every sample over the rounds, a strip for each variant, each with a scale of its own."""

    strips: tuple[SampleStrip, ...]
    title: str = "Every sample over the rounds"
    detail: Detail = "page"


class RoundsChart(Struct, frozen=True, kw_only=True):
    """A histogram of the ratio of each round, with the interval of the estimate above it."""

    mark: IntervalMark
    log_ratios: tuple[float, ...]
    band: float
    title: str = "Ratio of each round"
    detail: Detail = "page"


class Part(Struct, frozen=True):
    """A piece of a whole."""

    name: str
    value: float
    figure: str
    share: str = ""
    """Its share of the whole, shown where the part has a line of its own."""


class SplitChart(Struct, frozen=True, kw_only=True):
    """A whole split into its parts, to scale."""

    parts: tuple[Part, ...]
    title: str
    has_table: bool = False
    """A table of the document has the same figures, for formats without pictures."""
    detail: Detail = "brief"


class TimelineSpan(Struct, frozen=True):
    start: float
    """Start and length are shares of the window."""
    length: float
    kind: str
    tip: str


class TimelineChart(Struct, frozen=True, kw_only=True):
    """A strip for each device, with spans where the device was idle."""

    strips: tuple[tuple[str, tuple[TimelineSpan, ...]], ...]
    window: str
    title: str
    described: str
    caption: str = ""
    detail: Detail = "page"


class CurveChart(Struct, frozen=True, kw_only=True):
    """Bytes over time."""

    points: tuple[tuple[int, int, int], ...]
    """(nanoseconds, allocated bytes, reserved bytes); -1 where the reserved bytes are unknown."""
    peak: tuple[int, int]
    title: str
    caption: str = ""
    detail: Detail = "page"


class WaterfallLevel(Struct, frozen=True, kw_only=True):
    """A row of a waterfall. Values are in the unit of its axis."""

    title: str
    before: float
    """Where the row above ended; 0 where the bar stands on the ground."""
    value: float
    low: float | None = None
    high: float | None = None
    figure: str = ""
    note: str = ""
    kind: Literal["base", "gain", "gone", "lost", "end"] = "gain"


class WaterfallChart(Struct, frozen=True, kw_only=True):
    """Steps from the baseline down to what was confirmed; below them, what each kept fix still
    gives."""

    levels: tuple[WaterfallLevel, ...]
    axis_title: str = ""
    unit: str = ""
    bars: tuple[IntervalMark, ...] = ()
    bars_title: str = ""
    foot: tuple[str, ...] = ()
    title: str = ""
    about: str = ""
    detail: Detail = "page"


Chart = (
    RooflineChart | ForestChart | SamplesChart | RoundsChart | SplitChart | TimelineChart
    | CurveChart | WaterfallChart
)  # fmt: skip


class Section(Struct, frozen=True, kw_only=True):
    title: str
    blocks: tuple["Block", ...]
    id: str = ""
    detail: Detail = "brief"
    title_detail: Detail = "brief"
    """Where its title is shown, if not everywhere that the section is."""
    folded: bool = False
    """Pages and Markdown show the title, and the rest on demand."""
    line: Words = ""
    """One line that stands for the section in a terminal's short view."""
    beside: bool = False
    """Sentences only: at a terminal they stand beside the title."""
    spaced: bool = False
    """At a terminal an empty line parts its blocks, as in a longer text."""


Block = (
    Paragraph | Points | Labelled | KeyNumbers | Table | Code | Commands | Claims | Section | Chart
    | Drawing
)  # fmt: skip


class Document(Struct, frozen=True, kw_only=True):
    answer: tuple[Span, ...]
    """The result in one sentence."""
    about: tuple[str, ...] = ()
    """What was studied, in short parts: the program, the device, the steps."""
    facts: tuple[str, ...] = ()
    """Its main numbers, in short parts: the line below the answer."""
    blocks: tuple[Block, ...] = ()
    title: str = ""
    """The title of a page, if it is not the answer."""
    footer: str = ""
    label: str = ""
    """Stands before the answer at a terminal that other programs write to."""

    @property
    def answer_text(self) -> str:
        return "".join(span.text for span in self.answer)


class Figures(Struct, frozen=True):
    """A result as one table of raw values, for spreadsheets and programs."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]


class Scalar(Struct, frozen=True):
    name: str
    """Its group, a slash, and its own name."""
    values: Sequence[Any]
    """One a step; None where the value is not known. A text is "nan", "inf" or "-inf"."""


class Scalars(Struct, frozen=True, kw_only=True):
    """Values over the steps of one process."""

    name: str
    times_s: Sequence[float]
    """When each step ended, in seconds since 1970."""
    steps: Sequence[int]
    """The number of each step."""
    scalars: tuple[Scalar, ...]


class Report(Struct, frozen=True, kw_only=True):
    """All forms of one result. Each is made when it is asked for."""

    document: Callable[[], Document]
    data: Callable[[], dict[str, Any]]
    """The result's own JSON form."""
    page: Callable[[], Document] | None = None
    """What a page shows, where it is more than the document."""
    figures: Callable[[], Figures] | None = None
    scalars: Callable[[], Sequence[Scalars]] | None = None
    """Its values over the steps, for each process."""
    picture: Callable[[], WaterfallChart] | None = None
    """The picture, for formats that are a picture alone."""
