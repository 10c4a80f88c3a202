"""Random numbers in a trial: whether the samples of a loader draw any, and dropout that drops
nothing."""

import functools
import importlib
import inspect
import math
import mmap
import os
import random
import sys
from typing import Any

MAX_CHECKED_BATCHES = 8
"""Batches per worker that are checked for draws, as many as the steps that are watched."""
DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip
ATTENTION = "scaled_dot_product_attention"
RECURRENT = ("LSTM", "GRU", "RNN")


def generators(torch: Any) -> tuple[Any, ...]:
    """Return the states of the generators that a model's layers draw from; nothing while a graph is
    captured."""
    if not torch.cuda.is_initialized():
        return (torch.get_rng_state(),)
    if torch.cuda.is_current_stream_capturing():
        return ()
    return torch.get_rng_state(), torch.cuda.get_rng_state()


class LoaderDraws:
    """Finds out whether the workers of a loader make samples by code that draws random numbers. If
    so, other workers draw other numbers, and equal data cannot be expected.

    The states of the three global generators (torch, random, numpy) before and after a batch is
    fetched tell, in forked workers. A worker that was not forked has none of our hooks.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pid = os.getpid()
        self._checked = 0
        """Batches that this process has fetched and checked."""
        self._drew = mmap.mmap(-1, 1)
        """Shared with forked processes: whether a worker drew."""

    @property
    def in_workers(self) -> bool:
        return self._drew[0] == 1

    def install(self) -> None:
        """Watch the fetching of batches. Call this before the program makes its loaders."""
        fetch = importlib.import_module("torch.utils.data._utils.fetch")
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            kind.fetch = self._around(kind.fetch)

    def _around(self, original: Any) -> Any:
        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            if os.getpid() == self._pid or self._checked >= MAX_CHECKED_BATCHES:
                return original(fetcher, index)
            self._checked += 1
            before = self._states()
            try:
                return original(fetcher, index)
            finally:
                if before != self._states():
                    self._drew[0] = 1

        return fetch

    def _states(self) -> tuple[Any, ...]:
        numpy = sys.modules.get("numpy")
        drawn = numpy.random.get_state() if numpy is not None else None
        return (
            self._torch.get_rng_state().numpy().tobytes(),
            random.getstate(),
            None if drawn is None else (drawn[1].tobytes(), *drawn[2:]),
        )


class NoDropout:
    """Dropout that drops nothing, for trials whose results are compared. In another type, kernel or
    layout dropout draws another mask, and the numbers would tell nothing else: attention in 16 bits
    is another kernel on a GPU, with a mask of its own, and a mask in another layout is filled in
    another order, on a CPU as well. What dropout was asked to drop is counted, so that a fix under
    which it is not asked shows."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.asked_elements = 0
        """Elements that dropout would have dropped on average."""

    def install(self) -> None:
        """Replace torch's functions. Call this before the program imports them by their names."""
        functional = self._torch.nn.functional
        for name in DROPOUTS:
            setattr(functional, name, self._identity(getattr(functional, name)))
        setattr(functional, ATTENTION, self._attention(getattr(functional, ATTENTION)))
        for name in RECURRENT:
            kind = getattr(self._torch.nn, name)
            kind.forward = self._between_layers(kind.forward)

    def _identity(self, original: Any) -> Any:
        trains = inspect.signature(original).parameters["training"].default

        @functools.wraps(original)
        def dropout(
            input: Any, p: float = 0.5, training: bool = trains, inplace: bool = False
        ) -> Any:
            if training and not self._torch.compiler.is_compiling():
                self._count(p, input.numel())
            # In-place changes of the result by the program must leave the input alone.
            return input.clone() if training and p and not inplace else input

        return dropout

    def _attention(self, original: Any) -> Any:
        @functools.wraps(original)
        def attention(
            query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
            *rest: Any, **named: Any,
        ) -> Any:  # fmt: skip
            if dropout_p and not self._torch.compiler.is_compiling():
                self._count(dropout_p, math.prod(query.shape[:-1]) * key.shape[-2])
            return original(query, key, value, attn_mask, 0.0, *rest, **named)

        return attention

    def _between_layers(self, original: Any) -> Any:
        @functools.wraps(original)
        def forward(module: Any, *args: Any, **named: Any) -> Any:
            dropout, module.dropout = module.dropout, 0.0
            try:
                returned = original(module, *args, **named)
            finally:
                module.dropout = dropout
            if dropout and module.training:
                last = getattr(returned[0], "data", returned[0])  # of a packed sequence
                self._count(dropout, (module.num_layers - 1) * last.numel())
            return returned

        return forward

    def _count(self, p: float, elements: int) -> None:
        if self._torch._C._current_graph_task_id() == -1:  # not recomputed in a backward
            self.asked_elements += round(p * elements)
