"""Whether a program with fixes computes what the unchanged one does, and how that is known."""

from typing import Literal

from msgspec import Struct

Alters = Literal["nothing", "rounding", "semantics"]
"""What a fix may alter."""
Equality = Literal[
    "equal",  # every check that was asked for passed
    "weak",  # what could be compared is equal, but it is not enough to be sure
    "differs",
    "unknown",  # nothing could be compared
]
MEANS = "mean losses"
"""The check that stands for losses step by step if samples are drawn in another order."""


class Check(Struct, frozen=True, kw_only=True):
    """One comparison of a trial with the baseline's."""

    what: str
    """losses, gradient norms, applied steps, samples, parameters, buffers, evaluation"""
    passed: bool
    text: str
    """A sentence with its numbers: largest difference 2e-7 at step 3, allowed 1e-5."""
    difference: float | None = None
    allowed: float | None = None
    step: int | None = None
    batches: int | None = None
    """Batches whose outputs were compared."""
    doubt: bool = False
    """Whether the difference lies a little beyond the noise band: passed, but the answer is
    weak."""


class Parity(Struct, frozen=True, kw_only=True):
    equality: Equality
    why: str
    """A sentence for the table."""
    checks: tuple[Check, ...] = ()
    missing: tuple[str, ...] = ()
    """What could not be compared, and why, such as that the loader draws in its workers."""

    @property
    def is_proven(self) -> bool:
        """Whether the results are known to be equal, be it weakly."""
        return self.equality in ("equal", "weak")
