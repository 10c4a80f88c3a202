"""A change that may be tried on this program."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ridgeline.fixes.change import Change
from ridgeline.records.facts import Reason
from ridgeline.records.parity import Alters
from ridgeline.records.trial import Asked

_CLASSES: tuple[Alters, ...] = ("nothing", "rounding", "semantics")
_PRECISIONS = ("float32", "tf32", "float16", "bfloat16")


class Candidate(Struct, frozen=True, kw_only=True):
    change: Change
    options: dict[str, str] = {}
    unable: Reason | None = None
    """Why the fix cannot help here; None if it may."""
    bound: float | None = None
    """The most that the change can gain alone on the unchanged program; None if there is no bound.
    """
    promise: float = 1.0
    """The gain that is hoped for, from the bound and from the findings that the change mends. It
    decides the order of trials."""
    others: tuple[dict[str, str], ...] = ()
    """Other options worth trying."""
    brings: str = ""
    """The change that is put on with it from the first."""

    @property
    def asked(self) -> Asked:
        return Asked(change=self.change.id, options=self.options)


def asked(changes: Sequence[Candidate]) -> tuple[Asked, ...]:
    """As they are put on: the same set in the same order always, so that it is one set. What looks
    at the precision comes after it, and what compiles sees all others."""

    def order(one: Candidate) -> tuple[bool, bool, str]:
        return one.change.slot == "compile", one.change.slot != "precision", one.change.id

    return tuple(one.asked for one in sorted(changes, key=order))


def alters(changes: Iterable[Change]) -> Alters:
    """The most that any of them may."""
    return max((one.alters for one in changes), key=_CLASSES.index, default="nothing")


def precision(changes: Iterable[Change]) -> str:
    """The lowest of them."""
    known = [one.precision for one in changes if one.precision in _PRECISIONS]
    return max(known, key=_PRECISIONS.index, default="float32")
