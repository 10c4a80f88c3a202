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


Drawing = CurvesPlot
