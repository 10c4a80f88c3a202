"""Pieces of a drawing, every word escaped."""

from collections.abc import Iterable
from html import escape as _escape_html
from typing import Literal

from msgspec import Struct

from ridgeline.report.plain import printable

Anchor = Literal["start", "middle", "end"]


def escape(words: str) -> str:
    return _escape_html(printable(words))


class Frame(Struct, frozen=True, kw_only=True):
    """The rectangle that data is drawn in."""

    left: float
    right: float
    top: float
    bottom: float

    def x(self, share: float) -> float:
        return self.left + share * (self.right - self.left)

    def y(self, share: float) -> float:
        """Return the height of a share; shares count upwards."""
        return self.bottom - share * (self.bottom - self.top)


def drawing(width: float, height: float, title: str, described: str, parts: Iterable[str]) -> str:
    """Return a picture with words for those who cannot see it."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" xmlns="http://www.w3.org/2000/svg"'
        f' aria-label="{escape(f"{title}. {described}")}">'
        f"<desc>{escape(described)}</desc>{''.join(parts)}</svg>"
    )


def text(x: float, y: float, words: str, anchor: Anchor = "start", kind: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{_class(kind)}>{escape(words)}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{_class(kind)}/>'


def box(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
    return f"<rect {place}{_class(kind)}>{_tip(tip)}</rect>"


def dot(x: float, y: float, radius: float, kind: str, tip: str = "") -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"{_class(kind)}>{_tip(tip)}</circle>'


def dots(points: Iterable[tuple[float, float]], kind: str) -> str:
    """Draw many dots as one path of strokes without length: a tenth of the bytes of circles."""
    marks = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
    return f'<path d="{marks}"{_class(kind)}/>' if marks else ""


def track(points: Iterable[tuple[float, float]], kind: str) -> str:
    """Draw a line through points."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{joined}"{_class(kind)}/>' if joined else ""


def arrow(x: float, y: float, up: bool, kind: str, tip: str = "") -> str:
    """Draw a small triangle at an edge: there is more beyond."""
    far = -6 if up else 6
    shape = f"M{x - 4:.1f} {y:.1f}h8l-4 {far}z"
    return f'<path d="{shape}"{_class(kind)}>{_tip(tip)}</path>'


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _tip(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""
