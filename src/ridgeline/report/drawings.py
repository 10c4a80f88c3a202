"""Figures that a page draws with a script, so that a person can zoom, search and hover. Other
formats leave them out: what they say in short is in sentences and tables beside them.

Each block here is written into the page as JSON, and `web/src/data.ts` has the same types. Numbers
are raw, in the unit that their field names; the script writes them for people.
"""

from typing import Literal

from msgspec import Struct

Unit = Literal[
    "", "ns", "ms", "s", "bytes", "share", "count", "W", "°C", "MHz", "FLOP/s", "FLOP/B", "J"
]  # fmt: skip


class Curve(Struct, frozen=True, kw_only=True):
    name: str
    values: tuple[float | None, ...]
    kind: str = ""
    """What its colour stands for, such as "forward"; "" takes the next free colour."""


class Mark(Struct, frozen=True):
    at: float
    text: str


class Band(Struct, frozen=True):
    start: float
    end: float
    text: str


class CurvesPlot(Struct, frozen=True, kw_only=True):
    """Values over one axis, as lines, or as areas that stand on each other."""

    title: str
    """What the figure shows, as a sentence."""
    x: tuple[float, ...]
    x_name: str
    unit: Unit
    curves: tuple[Curve, ...]
    x_unit: Unit = ""
    stacked: bool = False
    stepped: bool = False
    """Whether a value holds until the next point, as the bars of a histogram do."""
    marks: tuple[Mark, ...] = ()
    bands: tuple[Band, ...] = ()
    caption: str = ""
    detail: Literal["page"] = "page"


class Lane(Struct, frozen=True, kw_only=True):
    """A row of a timeline. Its events are columns of equal length, in order of start."""

    group: str
    """The rank that the lane belongs to; "" where there is one."""
    name: str
    about: str = ""
    kind: Literal["steps", "phases", "idle", "device", "host"]
    starts: tuple[int, ...]
    """Nanoseconds since the start of the event before, which keeps the numbers short."""
    lengths: tuple[int, ...]
    depths: tuple[int, ...]
    works: tuple[int, ...]
    """Index into the columns of `Timeline`."""


class Kind(Struct, frozen=True):
    colour: str
    """The name of its colour, such as "collective-wait"."""
    name: str


class Fact(Struct, frozen=True):
    """A column of further texts on works."""

    label: str
    texts: tuple[int, ...]
    """Index into `Timeline.texts`; -1 where nothing is known."""


class Timeline(Struct, frozen=True, kw_only=True):
    """Events over time in lanes, which can be zoomed, searched, and followed to their source. What
    equal events have in common is a work: a row of the columns `names`, `kinds`, `places` and
    `facts`."""

    title: str
    length_ns: int
    lanes: tuple[Lane, ...]
    texts: tuple[str, ...]
    all_kinds: tuple[Kind, ...]
    all_places: tuple[str, ...]
    """As file:line."""
    functions: tuple[str, ...]
    """The function of each place."""
    names: tuple[int, ...]
    kinds: tuple[int, ...]
    places: tuple[int, ...]
    facts: tuple[Fact, ...]
    caption: str = ""
    detail: Literal["page"] = "page"


class SourceFile(Struct, frozen=True, kw_only=True):
    """Neighbouring lines of a file."""

    file: str
    first: int
    lines: tuple[str, ...]


class LineMark(Struct, frozen=True, kw_only=True):
    """What was found at a line of source."""

    file: str
    line: int
    text: str
    kind: Literal["finding", "time"]


class Source(Struct, frozen=True, kw_only=True):
    """Lines of source, with what was found there beside them."""

    title: str
    parts: tuple[SourceFile, ...]
    marks: tuple[LineMark, ...]
    caption: str = ""
    detail: Literal["page"] = "page"


Drawing = CurvesPlot | Timeline | Source
