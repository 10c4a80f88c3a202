"""A result's own JSON form as text."""

import math
from typing import Any

import msgspec

from ridgeline.report.plain import json_text


def render(data: dict[str, Any]) -> str:
    """Return one document, indented, that is safe to print at a terminal."""
    encoded = msgspec.json.encode(_writable(data))
    return json_text(msgspec.json.format(encoded, indent=2).decode())


def _writable(value: Any) -> Any:
    """Return the value with null for numbers that JSON has no words for (a loss can be infinite),
    and with question marks for halves of a character."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_writable(key): _writable(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
