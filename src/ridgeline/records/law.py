"""How a cost grows with a size: the law fitted to a sweep over batch or sequence length."""

from typing import Literal

from msgspec import Struct

Form = Literal["constant", "linear", "quadratic", "power"]


class Law(Struct, frozen=True, kw_only=True):
    """A cost as a function of one size n.

    constant a · linear a + b·n · quadratic a + b·n + c·n² · power a·n^k
    """

    form: Form
    coefficients: tuple[float, ...]
    """(a,), (a, b), (a, b, c) or (a, k), in the order written above."""
    equation: str
    """For reading, with the unit of the values: "1.2 ms + 0.31 ms·n"."""
    r_squared: float
    worst_relative_error: float
    """Of the law at the points it was fitted to."""
    points: int
    """Distinct sizes."""
    exact: bool = False
    """The values are whole numbers and the law gives each to within 1e-9, the one left out of the
    fit included: a count, not a measurement."""
