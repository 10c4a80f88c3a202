"""Figures that a page draws with a script, so that a person can zoom, search and hover. Other
formats leave them out: what they say in short is in sentences and tables beside them.

Each block here is written into the page as JSON, and `web/src/data.ts` has the same types. Numbers
are raw, in the unit that their field names; the script writes them for people.
"""

from typing import Literal

from msgspec import Struct

Unit = Literal[
    "", "ns", "ms", "s", "bytes", "share", "count", "W", "°C", "MHz", "%", "FLOP/s", "B/s",
    "FLOP/B", "J",
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
    stepped: Literal["", "after", "around"] = ""
    """Whether a value holds until the next point, as the bars of a histogram do, or around its
    point, as those of steps do."""
    from_zero: bool = True
    """Whether the axis of the values begins at 0."""
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
    launched: tuple[int, ...] = ()
    """How long before its start each event of a device was asked for, in nanoseconds; -1 where that
    is not known."""


class Kind(Struct, frozen=True):
    colour: str
    """The name of its colour, such as "collective-wait"."""
    name: str


class Fact(Struct, frozen=True):
    """A column of further texts on works."""

    label: str
    texts: tuple[int, ...]
    """Index into `Timeline.texts`; -1 where nothing is known."""
    searched: bool = True
    """Whether a search looks into it."""


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
    """Each place is written as file:line."""
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
    share: float = 0.0
    """The share of the time that the line takes, which is drawn as a bar."""


class Source(Struct, frozen=True, kw_only=True):
    """Lines of source, with what was found there beside them."""

    title: str
    parts: tuple[SourceFile, ...]
    marks: tuple[LineMark, ...]
    caption: str = ""
    detail: Literal["page"] = "page"


class Roof(Struct, frozen=True, kw_only=True):
    """A ceiling: an arithmetic rate, which is flat, or a bandwidth, which slopes."""

    name: str
    value: float
    kind: Literal["compute", "memory"]
    source: Literal["measured", "datasheet"]
    is_doubtful: bool = False
    """Whether nothing is judged by it, because it was measured on a busy machine."""


class RooflinePoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    intensity: float
    """0 for work without arithmetic, which stands at the left edge."""
    rate: float
    ns: float
    share: float
    kind: Literal["compute", "memory", "overhead", ""] = ""
    attained: float | None = None
    """Share of its roof; None where no ceiling is known, or where it is above it."""
    is_bound: bool = False
    """Whether the rate is the most that its ceilings allow, because it was not timed."""
    notes: tuple[str, ...] = ()
    """Lines of its tip: inputs, calls, place."""
    row: str = ""
    """A text that its row of a table has beside the name."""


class RooflineGroup(Struct, frozen=True, kw_only=True):
    """Points of one kind: operators, modules or kernels."""

    name: str
    points: tuple[RooflinePoint, ...]


class RooflinePlot(Struct, frozen=True, kw_only=True):
    """Rate over intensity, both logarithmic, below the ceilings of a device."""

    title: str
    roofs: tuple[Roof, ...]
    groups: tuple[RooflineGroup, ...]
    caption: str = ""
    detail: Literal["page"] = "page"


class Measure(Struct, frozen=True, kw_only=True):
    name: str
    unit: Unit
    values: tuple[float, ...]
    """The value of each node, with all nodes inside it."""


class IciclePlot(Struct, frozen=True, kw_only=True):
    """A tree in which the width of a node is its share of its parent."""

    title: str
    names: tuple[str, ...]
    parents: tuple[int, ...]
    """Index of the node that holds each node, which stands before it; -1 for the outermost."""
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()
    """A line of the tip for each node; empty for none."""
    set_off: tuple[int, ...] = ()
    """Indices of the nodes that are drawn in a colour of their own."""
    set_off_name: str = ""
    """The meaning of those nodes."""
    whole: str = "all"
    """Name of what holds the outermost nodes."""
    caption: str = ""
    detail: Literal["page"] = "page"


Drawing = CurvesPlot | Timeline | Source | RooflinePlot | IciclePlot
