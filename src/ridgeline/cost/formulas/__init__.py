"""What an operator costs: pure functions of shapes, dtypes and arguments. Knows nothing of torch.

Add one with `@formula("namespace::name")`; see `registry`. A file a family of operators.
"""

from ridgeline.cost.formulas import (  # noqa: F401  (each registers its family)
    attention,
    convolution,
    elementwise,
    matmul,
    movement,
    quantized,
    recurrent,
    reduction,
    transform,
)
from ridgeline.cost.formulas.call import Call, Tensor, Work
from ridgeline.cost.formulas.registry import find, formula, known_operators, work_of

__all__ = ["Call", "Tensor", "Work", "find", "formula", "known_operators", "work_of"]
