"""Two traces side by side: what got slower, what faster. Times are nanoseconds."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.trust import Check


class Difference(Struct, frozen=True, kw_only=True):
    """One row of two traces side by side, per step where both have steps."""

    of: Literal["kernel", "op", "module", "category", "cause", "phase", "total"]
    name: str
    before_ns: float
    after_ns: float
    before_count: float
    after_count: float

    @property
    def change_ns(self) -> float:
        return self.after_ns - self.before_ns


class TraceComparison(Struct, frozen=True, kw_only=True):
    before: str
    after: str
    per: Literal["step", "trace"]
    """What the figures are per: a step, where both traces have marks; else the whole."""
    before_ns: float
    after_ns: float
    differences: tuple[Difference, ...] = ()
    """Largest change first within each kind."""
    validation: tuple[Check, ...] = ()
    verdict: str = ""
    note: str = ""
    """One trace each is no proof: `ridgeline compare` measures."""
