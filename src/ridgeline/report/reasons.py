"""The one place where reasons become English: a template for every code.

A template names the facts of its reason in braces and may format them with a unit:
`"{needed_s:seconds} are needed, {left_s:seconds} are left"`. A test checks that every code has a
template.
"""

import string
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline import units
from ridgeline.records.facts import Reason

TEMPLATES: dict[str, str] = {}
"""Code to template. Each family of codes adds its own part below."""

_UNITS: Mapping[str, Callable[[Any], str]] = {
    "bytes": units.bytes_,
    "count": units.count,
    "percent": units.percent,
    "ratio": lambda value: f"{value:.2f} ×",
    "seconds": units.seconds,
}


class _UnitFormatter(string.Formatter):
    """Understands the names of units as format specifications."""

    def format_field(self, value: Any, format_spec: str) -> str:
        unit = _UNITS.get(format_spec)
        return unit(value) if unit is not None else str(super().format_field(value, format_spec))


_FORMATTER = _UnitFormatter()


def explain(reason: Reason | None) -> str:
    """Return the reason as a clause without a full stop; "" if there is no reason."""
    if reason is None:
        return ""
    return _FORMATTER.vformat(TEMPLATES[reason.code], (), reason.facts)
