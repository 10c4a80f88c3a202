"""Facts in which results are told: verdicts, ratios, places in source, reasons, and trust.

`ridgeline.report` makes English from them. No code reads a sentence back: whatever a caller needs
to know is a field.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

Verdict = Literal["FASTER", "SLOWER", "SAME", "UNDECIDED", "INVALID"]
"""The outcome of a paired comparison. SAME is a result: any difference is too small to matter.
UNDECIDED means that the data do not tell, INVALID that the two do not compute the same."""


class Ratio(Struct, frozen=True, kw_only=True):
    """Says how many times as fast (or as small) the candidate is, from paired processes."""

    value: float
    ci_low: float
    ci_high: float
    pairs: int
    level: float = 0.95


class Place(Struct, frozen=True, order=True):
    """A line of the user's source."""

    file: str
    line: int | None = None
    function: str = ""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"

    @classmethod
    def parse(cls, text: str) -> "Place | None":
        """Read `file:line` or `file:line:function`, as run directories store places.

        Return None for an empty text. A text without a line number is a file.
        """
        if not text:
            return None
        file, _, line = text.rpartition(":")
        if file and line.isdigit():
            return cls(file, int(line))
        before, _, number = file.rpartition(":")
        if before and number.isdigit():
            return cls(before, int(number), line)
        return cls(text)


Fact = str | int | float | bool | None
"""One value inside a reason: a number with its unit in the key, a name, an error message."""


class Reason(Struct, frozen=True):
    """Says why something was skipped, rejected, not applied or not counted: a code, its facts."""

    code: str
    """A member of one of the enums of codes, such as `TrialFailure`."""
    facts: dict[str, Fact] = {}
    cause: "Reason | None" = None
    """The reason behind this one: a search stops because a trial failed because it was killed."""


def because(code: StrEnum, *, cause: Reason | None = None, **facts: Fact) -> Reason:
    """Return the reason `code` with its facts: `because(SearchCode.OUT_OF_TIME, left_s=12)`."""
    return Reason(code.value, facts, cause)


Confidence = Literal["good", "doubtful", "unreliable"]
Severity = Literal["note", "warning", "error"]


class Trust(Struct, frozen=True, kw_only=True):
    """Says how far a figure can be believed, and why not further."""

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
