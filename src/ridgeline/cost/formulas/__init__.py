"""Formulas for what an operator costs, as functions of shapes, dtypes and arguments (no torch).

`@formula("namespace::name")` adds one; `call` explains how. Each other module holds families of
operators that do related work.
"""

from ridgeline.cost.formulas import attention, elementwise, products  # noqa: F401  (they register)
from ridgeline.cost.formulas.call import (
    Call,
    Family,
    Tensor,
    Work,
    family_of,
    find,
    formula,
    known_operators,
    work_of,
)

__all__ = [
    "Call",
    "Family",
    "Tensor",
    "Work",
    "family_of",
    "find",
    "formula",
    "known_operators",
    "work_of",
]
