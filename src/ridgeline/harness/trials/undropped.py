"""Dropout that drops nothing, for trials whose results are compared: computed in another type, by
another kernel or in another layout, it draws another mask, and nothing else could be told by the
numbers. What it was asked to drop is counted, so that a change under which it is not asked shows.

Attention in 16 bits is another kernel on a GPU, with a mask of its own; a mask in another layout is
filled in another order, on a CPU as well.
"""

import functools
import inspect
import math
from typing import Any

FUNCTIONS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip
ATTENTION = "scaled_dot_product_attention"
RECURRENT = ("LSTM", "GRU", "RNN")


class Undropped:
    """One for the trial, put on before the program imports functions by their names."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.asked = 0
        """Elements, as many as it would drop on average."""

    def put_on(self) -> None:
        functional = self._torch.nn.functional
        for name in FUNCTIONS:
            setattr(functional, name, self._nothing(getattr(functional, name)))
        setattr(functional, ATTENTION, self._attention(getattr(functional, ATTENTION)))
        for name in RECURRENT:
            kind = getattr(self._torch.nn, name)
            kind.forward = self._between_layers(kind.forward)

    def _nothing(self, theirs: Any) -> Any:
        trains = inspect.signature(theirs).parameters["training"].default

        @functools.wraps(theirs)
        def dropout(
            input: Any, p: float = 0.5, training: bool = trains, inplace: bool = False
        ) -> Any:
            if training and not self._torch.compiler.is_compiling():
                self._count(p, input.numel())
            # What is done in place to what was dropped leaves the input alone.
            return input.clone() if training and p and not inplace else input

        return dropout

    def _attention(self, theirs: Any) -> Any:
        @functools.wraps(theirs)
        def attention(
            query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
            *rest: Any, **named: Any,
        ) -> Any:  # fmt: skip
            if dropout_p and not self._torch.compiler.is_compiling():
                self._count(dropout_p, math.prod(query.shape[:-1]) * key.shape[-2])
            return theirs(query, key, value, attn_mask, 0.0, *rest, **named)

        return attention

    def _count(self, p: float, elements: int) -> None:
        if self._torch._C._current_graph_task_id() == -1:  # not what a backward computes again
            self.asked += round(p * elements)

    def _between_layers(self, theirs: Any) -> Any:
        @functools.wraps(theirs)
        def forward(module: Any, *args: Any, **named: Any) -> Any:
            was, module.dropout = module.dropout, 0.0
            try:
                returned = theirs(module, *args, **named)
            finally:
                module.dropout = was
            if was and module.training:
                last = getattr(returned[0], "data", returned[0])  # of a packed sequence
                self._count(was, (module.num_layers - 1) * last.numel())
            return returned

        return forward
