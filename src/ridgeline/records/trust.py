"""How far a figure can be believed, and what was found that says so."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Reason

Confidence = Literal["good", "doubtful", "unreliable"]
Severity = Literal["note", "warning", "error"]


class Trust(Struct, frozen=True, kw_only=True):
    """How far a figure can be believed, and why not further."""

    confidence: Confidence = "good"
    why: str = ""
    codes: tuple[str, ...] = ()
    """What the doubt rests on: the ids of checks, or codes of the analysis itself."""
    doubts: tuple[Reason, ...] = ()
    """Why not further, as codes with facts: a run has these in place of `why`."""


class Check(Struct, frozen=True, kw_only=True):
    """A test made before any number was computed, which found something wrong."""

    id: str
    severity: Severity
    claim: str
    """One sentence, with the count."""
    count: int = 0
    affects: tuple[str, ...] = ()
    """Sections this makes doubtful: idle, launch, roofline, modules, steps, ranks …"""
