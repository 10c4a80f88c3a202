"""Formulas for the cost of operators, as functions of shapes, dtypes and arguments, without torch.

`@formula("namespace::name")` registers a formula; `call` explains how. Each other module holds
families of related operators.
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
