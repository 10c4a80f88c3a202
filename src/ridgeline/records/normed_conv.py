"""Convolutions with a bias right before a batch norm, which takes any constant away again."""

from msgspec import Struct

from ridgeline.records.trace import Place


class NormedConv(Struct, frozen=True, kw_only=True):
    """Of one place and module; everything a step's."""

    place: Place | None = None
    """The user's function that calls it."""
    module: str = ""
    calls: float = 0.0
    weight: tuple[int, ...] = ()
    """Sizes of the weight; empty without recorded shapes."""
    add_ns: float = 0.0
    """Device time of adding the bias; host time on a CPU."""
    gradient_ns: float = 0.0
    """The same of summing its gradient."""
    exposed_ns: float = 0.0
    """Of both: on the critical path."""
